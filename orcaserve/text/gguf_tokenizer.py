"""Tokenizers from GGUF metadata: byte-level BPE (kind "gpt2") and SentencePiece BPE (kind "llama").

A GGUF file holds tokens, merges or scores, and the NAME of a pre-tokenizer; the pattern behind the name is knowledge
that lives in PRE_TOKENIZERS. A name that is not there stops the load: a wrong pattern gives other ids and quietly worse
text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from orcaserve.core.errors import CheckpointError, UnsupportedModel
from orcaserve.text.tokenizer import Tokenizer, add_start_and_end

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # values of tokenizer.ggml.token_type
BLANK = "\u2581"  # SentencePiece's mark for a blank


@dataclass(frozen=True)
class PreTokenizer:
    """How text is cut before merging.

    pattern: each match is a unit; None = GPT-2's own pattern. digits: every digit is a unit of its own, cut first.
    nfc: text is normalised to composed characters. ignore_merges: a unit that is a token needs no merges.
    adds_bos: what holds when the file does not say. make: what cuts, where that is no pattern alone.
    """

    pattern: str | None = None
    digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False
    make: Callable[[], pre_tokenizers.PreTokenizer] | None = None

    def build(self) -> pre_tokenizers.PreTokenizer:
        if self.make is not None:
            return self.make()
        if self.pattern is not None:
            cut = pre_tokenizers.Split(Regex(self.pattern), behavior="isolated")
            return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        if not self.digits:
            return byte_level
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])


def _words(number: str) -> str:
    """The pattern that Llama 3 and Qwen 2 share but for the length of numbers."""
    return (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{number}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def _cased_words(ending: str, number: str) -> str:
    """The pattern that GPT-4o and Mistral's Tekken share: a word ends before the next capital letter."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    start = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{start}{upper}*{lower}+{ending}|{start}{upper}+{lower}*{ending}|{number}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def _falcon() -> pre_tokenizers.PreTokenizer:
    """Runs of punctuation, then GPT-2's pattern, then runs of digits, of which three at a time."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    threes = pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), behavior="isolated")
    digits = pre_tokenizers.Digits(individual_digits=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), byte_level, digits, threes])


_GPT2 = PreTokenizer()
_DIGITS = PreTokenizer(digits=True)
_LLAMA3 = PreTokenizer(_words(r"\p{N}{1,3}"), ignore_merges=True, adds_bos=True)
_DBRX = PreTokenizer(_words(r"\p{N}{1,3}"))
_QWEN2 = PreTokenizer(_words(r"\p{N}"), nfc=True)
_GPT4O = PreTokenizer(_cased_words(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}"))
_TEKKEN = PreTokenizer(_cased_words("", r"\p{N}"), ignore_merges=True, adds_bos=True)
_BLOOM = PreTokenizer(r" ?[^(\s|.,!?…。，、।۔،)]+")

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    **dict.fromkeys(("default", "gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jina-en", "roberta-bpe"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _DBRX),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2),
    "gpt-4o": _GPT4O,
    "tekken": _TEKKEN,
    "bloom": _BLOOM,
    "falcon": PreTokenizer(make=_falcon),
}


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes.

    Raises UnsupportedModel for an unknown kind or pre-tokenizer, CheckpointError if the metadata contradicts itself.
    """
    file = _Metadata(metadata)
    kind = file.text("model")
    tokens = file.list("tokens", str)
    if not tokens:
        raise CheckpointError("tokenizer.ggml.tokens is empty or missing")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if kind == "gpt2":
        backend, adds_bos = _byte_level(file, vocabulary)
    elif kind == "llama":
        backend, adds_bos = _sentencepiece(file, tokens, vocabulary)
    else:
        raise UnsupportedModel(f"tokenizer kind {kind!r} is not supported (supported: gpt2, llama)")
    _add_marked_tokens(backend, tokens, file.list("token_type", int))
    special = {
        f"{name}_token": tokens[i]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if (i := file.token_id(f"{key}_token_id", len(tokens))) is not None
    }
    bos = special.get("bos_token") if file.flag("add_bos_token", adds_bos) else None
    eos = special.get("eos_token") if file.flag("add_eos_token", False) else None
    if bos is not None or eos is not None:
        add_start_and_end(backend, bos, eos)
    templates = [metadata.get(f"tokenizer.chat_template{name}") for name in ("", ".tool_use")]
    return Tokenizer(backend, special, *(text if isinstance(text, str) else None for text in templates))


def _byte_level(file: _Metadata, vocabulary: dict[str, int]) -> tuple[tokenizers.Tokenizer, bool]:
    name = file.text("pre", "default")
    cut = PRE_TOKENIZERS.get(name)
    if cut is None:
        raise UnsupportedModel(f"pre-tokenizer {name!r} is not supported (supported: {', '.join(PRE_TOKENIZERS)})")
    merges = _split_merges(file.list("merges", str))
    backend = _backend(lambda: models.BPE(vocab=vocabulary, merges=merges, ignore_merges=cut.ignore_merges))
    if cut.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = cut.build()
    backend.decoder = decoders.ByteLevel()
    return backend, cut.adds_bos


def _sentencepiece(
    file: _Metadata, tokens: Sequence[str], vocabulary: dict[str, int]
) -> tuple[tokenizers.Tokenizer, bool]:
    merges = _split_merges(file.list("merges", str))
    if not merges:
        scores = file.list("scores", float)
        if len(scores) != len(tokens):
            raise CheckpointError("tokenizer.ggml.scores and tokenizer.ggml.tokens differ in length")
        merges = _merges_from_scores(tokens, scores, vocabulary)
    unknown = file.token_id("unknown_token_id", len(tokens))
    backend = _backend(
        lambda: models.BPE(
            vocab=vocabulary,
            merges=merges,
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefixed = file.flag("add_space_prefix", True)
    # The prefix goes before the text's first character only, not after each special token, as transformers has it.
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        BLANK, prepend_scheme="first" if prefixed else "never", split=False
    )
    steps = [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)
    return backend, True


def _merges_from_scores(
    tokens: Sequence[str], scores: Sequence[float], vocabulary: Mapping[str, int]
) -> list[tuple[str, str]]:
    """The merges a SentencePiece vocabulary implies: every way to build a token from two others, best score first."""
    ranked: list[tuple[tuple[float, int, int], tuple[str, str]]] = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                ranked.append(((-score, -len(left), -len(right)), (left, right)))
    ranked.sort(key=lambda entry: entry[0])  # stable: equals stay in the vocabulary's order, as transformers has them
    return [merge for _, merge in ranked]


def _split_merges(merges: Sequence[str]) -> list[tuple[str, str]]:
    try:
        # The separator is the first blank after the first character: a left part may itself be a blank.
        return [(m[: (at := m.index(" ", 1))], m[at + 1 :]) for m in merges]
    except ValueError as error:
        raise CheckpointError("tokenizer.ggml.merges holds an entry without two parts") from error


def _backend(model: Any) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer(model())
    except Exception as error:  # the library raises bare Exception, for example for a merge of unknown tokens
        raise CheckpointError(f"the GGUF file's vocabulary and merges do not fit together: {error}") from error


def _add_marked_tokens(backend: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Control and user-defined tokens are found whole in a text, before it is cut. So is the unknown token, which is as
    special as a control token in transformers: no text shows it."""
    if types and len(types) != len(tokens):
        raise CheckpointError("tokenizer.ggml.token_type and tokenizer.ggml.tokens differ in length")
    special = [token for token, kind in zip(tokens, types, strict=False) if kind in (UNKNOWN, CONTROL) and token]
    others = [token for token, kind in zip(tokens, types, strict=False) if kind == USER_DEFINED and token]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in others])


class _Metadata:
    """Typed reading of the `tokenizer.ggml.` keys; a value of the wrong type is a damaged file."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._values = metadata

    def _get(self, key: str) -> Any:
        return self._values.get(f"tokenizer.ggml.{key}")

    def text(self, key: str, default: str = "") -> str:
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise CheckpointError(f"tokenizer.ggml.{key} is not a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key)
        return default if value is None else bool(value)

    def token_id(self, key: str, n_tokens: int) -> int | None:
        value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < n_tokens:
            raise CheckpointError(f"tokenizer.ggml.{key} is not the id of a token")
        return value

    def list(self, key: str, kind: type) -> list[Any]:
        value = self._get(key)
        if value is None:
            return []
        values = value.tolist() if hasattr(value, "tolist") else list(value)
        if any(type(v) is not kind for v in values):
            raise CheckpointError(f"tokenizer.ggml.{key} holds values of another type")
        return values
