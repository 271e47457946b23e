"""Characters: a text that comes in pieces, read by coroutines that wait where it ends for now.

A reader is a generator that yields when it needs more text and returns what it has read:

    name = yield from json_string(characters, out)
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]


class Malformed(Exception):
    """The text is not what a reader was to read."""


class Characters:
    """text[at:] has not been read yet. mark: from where the text is kept, also once it is read; None: from `at`."""

    __slots__ = ("at", "ended", "mark", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.mark: int | None = None
        self.ended = False

    def feed(self, text: str) -> None:
        cut = self.at if self.mark is None else self.mark
        self.text = self.text[cut:] + text
        self.at -= cut
        if self.mark is not None:
            self.mark = 0

    def peek(self) -> Steps[str]:
        """The next character, or "" at the end of the text."""
        while self.at >= len(self.text):
            if self.ended:
                return ""
            yield
        return self.text[self.at]

    def take(self) -> Steps[str]:
        """The next character, read. Raises Malformed at the end of the text."""
        character = yield from self.peek()
        if not character:
            raise Malformed
        self.at += 1
        return character

    def expect(self, character: str) -> Steps[None]:
        if (yield from self.take()) != character:
            raise Malformed

    def skip_blanks(self) -> Steps[str]:
        """Passes over whitespace. Returns what comes then, not read yet; "" at the end of the text."""
        while (character := (yield from self.peek())).isspace():
            self.at += 1
        return character

    def take_one_of(self, *literals: str) -> Steps[str]:
        """The longest of them that comes next, read; "" if none does."""
        while True:
            found = max((x for x in literals if self.text.startswith(x, self.at)), key=len, default="")
            rest = self.text[self.at : self.at + max(map(len, literals), default=0)]
            may_be_longer = any(len(x) > len(rest) and x.startswith(rest) for x in literals)
            if self.ended or not may_be_longer:
                self.at += len(found)
                return found
            yield
