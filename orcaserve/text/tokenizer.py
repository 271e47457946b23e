"""Tokenizer: text to ids and back, read from a checkpoint folder or from a GGUF file's metadata.

Both kinds of file become one backend (the `tokenizers` library), so everything else sees one type. No torch, no HTTP
here: the offline API uses this module too.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from orcaserve.core.errors import CheckpointError, InvalidRequest, UnsupportedModel
from orcaserve.text.detokenizer import Detokenizer, spelling_of
from orcaserve.text.vocabulary import Vocabulary

# Above this many characters the interpreter lock is released while the text is encoded (that path costs more per call).
LONG_TEXT = 4096
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """One model's tokenizer. Safe to use from several threads.

    special_tokens: the named ones (`bos_token`, ...) as text, for chat templates.
    chat_template: Jinja source, or None if the model has none. tool_template: that for chats with tools, if there are two.
    added: ids of the tokens that are found whole in a text, before it is cut; special_ids: of those that are special.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str],
        chat_template: str | None = None,
        tool_template: str | None = None,
    ) -> None:
        # Limits stored for training would cut or pad prompts in silence.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.special_tokens = dict(special_tokens)
        self.chat_template = chat_template
        self.tool_template = tool_template
        bos = self.special_tokens.get("bos_token")
        self.bos_id: int | None = None if bos is None else backend.token_to_id(bos)
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        # Characters that one token stands for, at most: spelled-out bytes and marks only make a token's name longer.
        self.longest_token = max(map(len, backend.get_vocab(with_added_tokens=True)), default=1)
        added = backend.get_added_tokens_decoder()
        self.added = {token.content: i for i, token in added.items()}
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._spelling = spelling_of(backend)

    @classmethod
    def from_path(cls, path: Path) -> Tokenizer:
        """Read the tokenizer of a checkpoint folder, a GGUF file, or a folder with one GGUF file.

        Raises UnsupportedModel for a kind, pre-tokenizer or decoder this version does not know, CheckpointError for
        damaged files.
        """
        if path.is_dir() and ((path / "tokenizer.json").exists() or not any(path.glob("*.gguf"))):
            return _from_folder(path)
        from orcaserve.checkpoint.converted import gguf_of
        from orcaserve.checkpoint.gguf import GGUFFile
        from orcaserve.text.gguf_tokenizer import tokenizer_from_metadata

        return tokenizer_from_metadata(GGUFFile(gguf_of(path)).metadata)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`, as transformers' tokenizer gives them. Special tokens written in the text are recognised."""
        try:
            if len(text) < LONG_TEXT:
                ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
            else:
                ids = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except TypeError as error:  # half of a surrogate pair: not text that UTF-8 can write
            raise InvalidRequest("prompt", "the text is not valid Unicode") from error
        return ids

    def encode_chat(self, rendered: str) -> list[int]:
        """Ids of a rendered chat template. The template has written the special tokens, so none are added."""
        return self.encode(rendered, add_special_tokens=False)

    def special_among(self, texts: Collection[str]) -> dict[str, int]:
        """Those that are special tokens, with their ids."""
        return {text: i for text in texts if (i := self.added.get(text)) in self.special_ids and i is not None}

    def encode_as_text(self, text: str) -> list[int]:
        """Ids of `text` in which no added token is recognised: what is spelled like one is text like any other."""
        backend = self._backend
        if backend.normalizer is not None:
            text = backend.normalizer.normalize_str(text)
        pieces = [text]
        if backend.pre_tokenizer is not None:
            pieces = [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        return [token.id for piece in pieces for token in backend.model.tokenize(piece)]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def spell(self, ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary has it, with its marks for blanks and bytes; "" for an id of none."""
        return [self._backend.id_to_token(token) or "" for token in ids]

    def token_bytes(self, token: int) -> bytes:
        """What an id stands for, alone, in UTF-8: maybe a part of a character only."""
        return self._spelling.bytes_of(token)

    def detokenizer(
        self, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True, shown: frozenset[int] = frozenset()
    ) -> Detokenizer:
        """A fresh incremental decoder that continues after `prompt_ids`. shown: special tokens that are not skipped."""
        skipped = self.special_ids - shown if skip_special_tokens else frozenset[int]()
        return self._spelling.detokenizer(prompt_ids, skipped)

    def vocabulary(self, size: int, eos_ids: frozenset[int]) -> Vocabulary:
        """What the ids below `size`, the rows of the model's head, stand for. Takes some 100 ms for large ones."""
        eos_ids = frozenset(token for token in eos_ids if token < size)
        special_ids = frozenset(token for token in self.special_ids if token < size)
        return Vocabulary(list(map(self._spelling.bytes_of, range(size))), special_ids | eos_ids, eos_ids)


def _from_folder(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    if not file.exists():
        raise UnsupportedModel(f"{folder.name} has no tokenizer.json (other tokenizer files are not read)")
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for whatever is wrong with the file
        raise CheckpointError(f"{file.name} cannot be read: {error}") from error
    config = _read_json(folder / "tokenizer_config.json")
    special = {name: text for name in SPECIAL_NAMES if (text := _token_text(config.get(name))) is not None}
    _register_added(backend, config, special)
    if backend.post_processor is None and config.get("add_bos_token") is True and "bos_token" in special:
        add_start_and_end(backend, bos=special["bos_token"])
    named = _named_templates(config)
    return Tokenizer(backend, special, _chat_template(folder, config) or named.get("default"), named.get("tool_use"))


def _register_added(backend: tokenizers.Tokenizer, config: Mapping[str, Any], special: Mapping[str, str]) -> None:
    """Make known the added tokens that only tokenizer_config.json names, under the ids it gives them."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    listed = config.get("added_tokens_decoder") or {}
    try:
        entries = sorted((int(i), dict(entry)) for i, entry in listed.items())
        for expected, entry in entries:
            flags = {
                k: bool(entry[k]) for k in ("single_word", "lstrip", "rstrip", "normalized", "special") if k in entry
            }
            token = tokenizers.AddedToken(str(entry["content"]), **flags)
            if token.content in known:
                continue
            (backend.add_special_tokens if token.special else backend.add_tokens)([token])
            known.add(token.content)
            if backend.token_to_id(token.content) != expected:
                raise CheckpointError(f"tokenizer_config.json gives an added token the id {expected}, which is taken")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError("tokenizer_config.json: added_tokens_decoder is malformed") from error
    # Named tokens are special even where no list says so; one that has no id at all is left out, never invented.
    backend.add_special_tokens(
        [
            tokenizers.AddedToken(text, normalized=False, special=True)
            for text in dict.fromkeys(special.values())
            if text not in known and backend.token_to_id(text) is not None
        ]
    )


def add_start_and_end(backend: tokenizers.Tokenizer, bos: str | None = None, eos: str | None = None) -> None:
    """Let encoding put `bos` before and `eos` after the text when special tokens are asked for."""
    tokens = [token for token in dict.fromkeys((bos, eos)) if token is not None]
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single=[*([bos] if bos else []), "$A", *([eos] if eos else [])],
        special_tokens=[(token, backend.token_to_id(token)) for token in tokens],
    )


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The template file wins over the configuration's entry, as in transformers."""
    file = folder / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{file.name} cannot be read as UTF-8 text") from error
    template = config.get("chat_template")
    if template is None:
        template = _read_json(folder / "chat_template.json").get("chat_template")
    return template if isinstance(template, str) else None


def _named_templates(config: Mapping[str, Any]) -> dict[str, str]:
    """Templates of the configuration, where it has several by name."""
    listed = config.get("chat_template")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    pairs = [(entry.get("name"), entry.get("template")) for entry in entries]
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


def _read_json(file: Path) -> dict[str, Any]:
    """An object from a JSON file; empty if there is no such file."""
    if not file.exists():
        return {}
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file.name} is not JSON") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file.name} is not a JSON object")
    return value


def _token_text(value: object) -> str | None:
    """A token as tokenizer_config.json writes it: text, or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
