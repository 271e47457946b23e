"""Writable: which texts the tokens of a vocabulary can write at all.

Vocabularies of bytes need not have every byte: what nobody wrote when the tokenizer was made may be missing. A grammar
that leads to such a byte leads to where there is no way on. So literals that need one are taken out before a grammar is
compiled, and what a pattern allows is cut down to what can be written.
"""

from __future__ import annotations

from functools import cached_property

from orcaserve.text.vocabulary import Vocabulary

_ESCAPES = ("\\x", "\\u", "\\U")


class Writable:
    """A byte that no token has cannot be written; whether all others can, in every order, is not looked at."""

    def __init__(self, lacking: frozenset[int] = frozenset()) -> None:
        """lacking: bytes that no token has."""
        self._lacking = lacking

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Writable:
        texts = (text for id_, text in enumerate(vocabulary.texts) if id_ not in vocabulary.special_ids)
        return cls(frozenset(range(256)).difference(*texts))

    def can_write(self, text: str) -> bool:
        return self._lacking.isdisjoint(text.encode("utf-8", "surrogatepass"))

    def may_lack(self, pattern: str) -> bool:
        """Whether a regular expression names a character that cannot be written, or one by its number."""
        return not self.can_write(pattern) or (self.patterns[0] != ".*" and any(e in pattern for e in _ESCAPES))

    @cached_property
    def patterns(self) -> tuple[str, str]:
        """Regular expressions of all that can be written: as it is, and within a string of JSON, which has escapes."""
        excluded = [(first, last) for byte in sorted(self._lacking) for first, last in _characters(byte)]
        return _without(excluded), _without([pair for pair in excluded if pair[0] >= 0x20])


def _characters(byte: int) -> list[tuple[int, int]]:
    """The numbers of the characters whose first byte this is: from, to."""
    if byte < 0x80:
        return [(byte, byte)]
    if 0xC2 <= byte < 0xE0:
        return [((byte & 0x1F) << 6, ((byte & 0x1F) << 6) + 0x3F)]
    if 0xE0 <= byte < 0xF0:
        first = (byte & 0xF) << 12
        return [(max(first, 0x800), 0xD7FF if byte == 0xED else first + 0xFFF)]
    if 0xF0 <= byte < 0xF5:
        first = (byte & 7) << 18
        return [(max(first, 0x10000), min(first + 0x3FFFF, 0x10FFFF))]
    return []


def _without(excluded: list[tuple[int, int]]) -> str:
    def written(code: int) -> str:
        return f"\\x{code:02x}" if code < 0x80 else chr(code)

    ranges = "".join(f"{written(first)}-{written(last)}" for first, last in excluded)
    return f"[^{ranges}]*" if ranges else ".*"
