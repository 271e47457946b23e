"""CallParser: an answer's text as it comes, told apart into content and calls.

Content goes out at once; only what may be the beginning of a call is held back. A call is told of once its name is
known to be one that the client offered, and then its arguments as they come. Where a text turns out to be no call, it
is content, word for word.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass

from orcaserve.serving.tool_calls.characters import Characters, Malformed, Steps
from orcaserve.serving.tool_calls.events import Arguments, CallBegins, CallBreaks, Content, Event


@dataclass(frozen=True, slots=True)
class Marks:
    """begins: open a block of calls; ends: close one. bare: characters that open one where an answer begins."""

    begins: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    bare: str = ""

    @property
    def all(self) -> tuple[str, ...]:
        return self.begins + self.ends


class CallParser(ABC):
    """Finds calls; how a call is written is the business of subclasses.

        parser = Parser(marks, names, most, hidden)
        events = parser.push(text)             # as often as text comes
        events = parser.end(cut=False)         # once; cut: the text ends because it had to, not because it was over

    However a text is cut into pieces, the events are the same, but for how content and arguments are cut.

    names: functions that may be called. most: calls; what is beyond them is left out. hidden: those of the marks that
    are special tokens, which content does not show.
    n_whole: calls that are complete. partial: the text was cut inside of a call, which has begun.
    """

    def __init__(self, marks: Marks, names: Collection[str], most: int, hidden: Collection[str] = ()) -> None:
        self._source = Characters()
        self._marks = marks
        self._names = names
        self._most = most
        sought = {*marks.begins, *hidden}
        self._sought = _any_of(sought)
        self._beginnings = {mark[:n] for mark in sought for n in range(1, len(mark))}
        self._longest = max(map(len, sought), default=0)
        self._hidden = _any_of(hidden)
        self._events: list[Event] = []
        self._out: list[str] = []  # arguments that were read and not yet told of
        self._index = 0  # of the call that is read, or of the next one
        self._begun = False
        self._saying = False  # content has begun, since the start or the last call
        self._blanks = ""  # whitespace that is content only if content follows
        self._cut = False
        self.n_whole = 0
        self.partial = False
        self._reading = self._read()
        next(self._reading)

    def push(self, text: str) -> list[Event]:
        if text:
            self._source.feed(text)
            next(self._reading)
        return self._told()

    def end(self, cut: bool = False) -> list[Event]:
        self._source.ended = True
        self._cut = cut
        for _ in self._reading:
            raise AssertionError("a reader waits for text after its end")
        return self._told()

    @abstractmethod
    def _block(self, mark: str) -> Steps[None]:
        """Read calls, up to what ends them. mark: what opened the block, and is read; "" if it is bare.

        Each call is `_begin`, the reading of its arguments into `_out`, and `_finish`.
        """

    def _check(self, name: str) -> str:
        if name not in self._names:
            raise Malformed
        return name

    def _begin(self, name: str) -> None:
        self._begun = True
        if self._index < self._most:
            self._events.append(CallBegins(self._index, name))

    def _finish(self) -> None:
        """The call is whole: nothing that follows can change it."""
        self._flush()
        self._begun = False
        self._index += 1
        self.n_whole += self._index <= self._most
        self._saying, self._blanks = False, ""
        self._source.mark = self._source.at

    def _read(self) -> Steps[None]:
        # Nothing is there yet: the first piece of text is waited for before anything is looked at.
        source = self._source
        yield
        if self._marks.bare:
            source.mark = source.at
            if (first := (yield from source.skip_blanks())) and first in self._marks.bare:
                yield from self._try_block("")
            else:
                source.at, source.mark = source.mark, None
        while (mark := (yield from self._content())) is not None:
            yield from self._try_block(mark)

    def _content(self) -> Steps[str | None]:
        """Say content up to the next mark that opens a block, which is read and returned; None: the text has ended."""
        source = self._source
        while True:
            rest = source.text[source.at :]
            found = self._sought.search(rest)
            ready = len(rest) - (0 if source.ended else self._may_begin(rest)) if found is None else found.start()
            self._say(rest[:ready])
            if found is not None:
                source.mark = source.at + ready
                source.at += found.end()
                if found[0] in self._marks.begins:
                    return found[0]
                source.mark = None  # a mark that closes nothing, and is not shown
                continue
            source.at += ready
            if source.ended:
                if self._blanks and not self._index:
                    self._events.append(Content(self._blanks))
                return None
            yield

    def _may_begin(self, text: str) -> int:
        """Characters at the end of `text` that a mark may begin with."""
        lengths = range(min(self._longest - 1, len(text)), 0, -1)
        return next((n for n in lengths if text[-n:] in self._beginnings), 0)

    def _try_block(self, mark: str) -> Steps[None]:
        try:
            yield from self._block(mark)
        except Malformed:
            self._give_up()
        self._source.mark = None

    def _give_up(self) -> None:
        source = self._source
        raw = self._hidden.sub("", source.text[source.mark : source.at])
        if not self._begun:
            self._out.clear()
            self._say(raw)
        elif source.ended and self._cut:
            self._flush()
            self.partial = self._index < self._most
        else:
            self._flush()
            if self._index < self._most:
                self._events.append(CallBreaks(self._index, raw))
            self._begun = False
            self._index += 1

    def _say(self, text: str) -> None:
        if not self._saying:
            text = self._blanks + text
            self._blanks = text if text.isspace() else ""
            if self._blanks or not text:
                return
            self._saying = True
        if text:
            self._events.append(Content(text))

    def _flush(self) -> None:
        if self._begun and self._out:
            if self._index < self._most:
                self._events.append(Arguments(self._index, "".join(self._out)))
            self._out.clear()

    def _told(self) -> list[Event]:
        self._flush()
        events, self._events = self._events, []
        return events


def _any_of(texts: Collection[str]) -> re.Pattern[str]:
    """Finds the first of them, the longest of those that begin there; nothing if there are none."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")
