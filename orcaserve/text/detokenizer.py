"""Incremental detokenisation: ids in, text out, and never a piece of a character.

What comes out, joined, is exactly decode(prompt + output) without what belongs to decode(prompt); each id costs
constant time. Two kinds of vocabulary need two ways:

    byte level   each token is a string of bytes; characters are cut anywhere. An incremental UTF-8 decoder holds back
                 the bytes of an unfinished character.
    pieces       each token is text, with a mark for blanks; what has no token is spelled in byte tokens `<0xE6>`. A
                 run of byte tokens is decoded as a whole, since one ill-formed byte makes all of the run ill-formed,
                 so a run waits for its end.

A prompt may end inside a character or a run: the bytes it leaves open are the detokenizer's starting state.
"""

from __future__ import annotations

import codecs
import copy
import json
from collections.abc import Sequence
from typing import Any, Protocol

import tokenizers

from orcaserve.core.errors import UnsupportedModel

REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    def push(self, token: int) -> str:
        """The text that `token` completes; often empty."""

    def flush(self) -> str:
        """The text of what is still held back, ill-formed bytes as U+FFFD. Call once, at the end."""

    def fork(self) -> Detokenizer:
        """Another one that goes on from here."""


class Spelling(Protocol):
    """How a vocabulary writes text: what each id stands for. One per tokenizer, shared by all streams."""

    def detokenizer(self, prompt_ids: Sequence[int], skipped: frozenset[int]) -> Detokenizer:
        """A fresh detokenizer that continues after `prompt_ids`. skipped: ids that are no text."""

    def bytes_of(self, token: int) -> bytes:
        """What the id stands for in UTF-8, or a part of a character; nothing for an id without a token."""


def spelling_of(backend: tokenizers.Tokenizer) -> Spelling:
    """Raises UnsupportedModel for a decoder that cannot be followed step by step."""
    steps = _decoder_steps(backend)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteLevelSpelling(backend)
    if kinds == ["Metaspace"]:
        drops_first = steps[0].get("prepend_scheme", "always") != "never"
        return PieceSpelling(backend, [(steps[0]["replacement"], " ")], drops_first=drops_first)
    replaces, strips = [], False
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": pattern}, "content": content}:
                replaces.append((pattern, content))
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
                strips = True
            case {"type": "ByteFallback" | "Fuse"}:
                pass
            case _:
                raise _unsupported(kinds)
    if "Fuse" not in kinds:
        raise _unsupported(kinds)
    return PieceSpelling(backend, replaces, byte_fallback="ByteFallback" in kinds, strips_blank=strips)


class ByteLevelSpelling:
    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._cache: dict[int, bytes] = {}  # at most one entry an id

    def bytes_of(self, token: int) -> bytes:
        known = self._cache.get(token)
        if known is None:
            known = self._cache[token] = _bytes_of_text(_token_text(self._backend, token) or "")
        return known

    def detokenizer(self, prompt_ids: Sequence[int], skipped: frozenset[int]) -> Detokenizer:
        # An unfinished character has at most three bytes, so the last few tokens tell what the prompt leaves open.
        tail = b""
        for token in reversed(prompt_ids):
            if token not in skipped:
                tail = self.bytes_of(token) + tail
            if len(tail) >= 4:
                break
        return ByteLevelDetokenizer(self, tail, skipped)


class ByteLevelDetokenizer:
    def __init__(self, spelling: ByteLevelSpelling, prompt_tail: bytes, skipped: frozenset[int]) -> None:
        self._bytes_of = spelling.bytes_of
        self._skip = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoder.decode(prompt_tail)
        # Bytes of the prompt that never become a character are the prompt's U+FFFD, not ours.
        self._owed = bool(self._decoder.getstate()[0])

    def push(self, token: int) -> str:
        if token in self._skip:
            return ""
        return self._own(self._decoder.decode(self._bytes_of(token)))

    def flush(self) -> str:
        return self._own(self._decoder.decode(b"", True))

    def fork(self) -> ByteLevelDetokenizer:
        forked = copy.copy(self)
        forked._decoder = copy.copy(self._decoder)
        return forked

    def _own(self, text: str) -> str:
        if self._owed and text:
            self._owed = False
            return text.removeprefix(REPLACEMENT)
        return text


class PieceSpelling:
    """replaces: (mark, text) in order; strips_blank: the very first blank of a text is dropped; drops_first: all marks
    of the very first token are dropped."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        replaces: Sequence[tuple[str, str]],
        *,
        byte_fallback: bool = False,
        strips_blank: bool = False,
        drops_first: bool = False,
    ) -> None:
        self._backend = backend
        self._replaces = list(replaces)
        self._byte_fallback = byte_fallback
        self.strips_blank = strips_blank
        self.drops_first = drops_first
        self._cache: dict[int, str | int | None] = {}

    def piece(self, token: int) -> str | int | None:
        """Text, or the value of a byte token, or None for an id without a token."""
        if token not in self._cache:
            self._cache[token] = self._spell(token)
        return self._cache[token]

    def first_piece(self, token: int) -> str | int | None:
        """As `piece`, for a token that begins a text."""
        return self._spell(token, drop=True) if self.drops_first else self.piece(token)

    def _spell(self, token: int, drop: bool = False) -> str | int | None:
        text = _token_text(self._backend, token)
        if text is None:
            return None
        for mark, replacement in self._replaces:
            text = text.replace(mark, "" if drop else replacement)
        if self._byte_fallback and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            try:
                return int(text[3:5], 16)
            except ValueError:
                return text
        return text

    def detokenizer(self, prompt_ids: Sequence[int], skipped: frozenset[int]) -> Detokenizer:
        run = bytearray()
        starts = True
        for token in reversed(prompt_ids):
            if token in skipped:
                continue
            piece = self.piece(token)
            if piece is None:
                continue
            starts = False
            if not isinstance(piece, int):
                break
            run.insert(0, piece)
        return PieceDetokenizer(self, bytes(run), skipped, starts)


class PieceDetokenizer:
    def __init__(self, spelling: PieceSpelling, prompt_run: bytes, skipped: frozenset[int], starts: bool) -> None:
        self._spelling = spelling
        self._skip = skipped
        self._run = bytearray(prompt_run)  # byte tokens not yet decoded
        self._owned_from = len(prompt_run)  # where our part of the run begins
        self._first_token = starts
        self._first_text = starts

    def push(self, token: int) -> str:
        if token in self._skip:
            return ""
        spell = self._spelling.first_piece if self._first_token else self._spelling.piece
        piece = spell(token)
        if piece is None:
            return ""
        self._first_token = False
        if isinstance(piece, int):
            self._run.append(piece)
            return ""
        return self._out(self._end_run() + piece)

    def flush(self) -> str:
        return self._out(self._end_run())

    def fork(self) -> PieceDetokenizer:
        forked = copy.copy(self)
        forked._run = bytearray(self._run)
        return forked

    def _end_run(self) -> str:
        """The characters of the run that hold at least one byte of ours."""
        run, owned_from = bytes(self._run), self._owned_from
        self._run.clear()
        self._owned_from = 0
        if len(run) == owned_from:
            return ""
        try:
            text = run.decode()
        except UnicodeDecodeError:
            return REPLACEMENT * (len(run) - owned_from)
        if not owned_from:
            return text
        before = run[:owned_from].decode(errors="ignore")  # whole characters that the prompt had already
        return text[len(before) :]

    def _out(self, text: str) -> str:
        if self._first_text and text:
            self._first_text = False
            if self._spelling.strips_blank:
                return text.removeprefix(" ")
        return text


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    if backend.decoder is None:
        raise UnsupportedModel("the tokenizer has no decoder")
    description = json.loads(backend.decoder.__getstate__())
    return list(description["decoders"]) if description["type"] == "Sequence" else [description]


def _token_text(backend: tokenizers.Tokenizer, token: int) -> str | None:
    """None for an id without a token: heads are often wider than the vocabulary."""
    return backend.id_to_token(token)


def _unsupported(kinds: list[str]) -> UnsupportedModel:
    return UnsupportedModel(
        f"tokenizer decoder {'+'.join(kinds)} is not supported (byte-level and SentencePiece kinds are)"
    )


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(b): b for b in printable}
    others = [b for b in range(256) if b not in set(printable)]
    alphabet.update({chr(0x100 + i): b for i, b in enumerate(others)})
    return alphabet


BYTE_ALPHABET = _byte_alphabet()


def _bytes_of_text(token: str) -> bytes:
    """A byte-level token's bytes; an added token with a character outside the alphabet stands for itself."""
    try:
        return bytes([BYTE_ALPHABET[c] for c in token])
    except KeyError:
        return token.encode()
