"""Stop strings: find the first one in a stream of text, and never let a part of one out."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Text goes in as it is generated; what certainly precedes every stop string comes out.

    Each stop string is followed by its Knuth-Morris-Pratt automaton: the state after a character is how much of the
    string the text ends with. A full match ends the text; the longest partial match is what must be held back. The
    match that completes first wins (the longest of those that complete together), wherever token borders lie.
    """

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        self._stops = list(stops)
        self._failures = [_failures(stop) for stop in self._stops]
        self._states = [0] * len(self._stops)
        self._include = include_stop
        self._held = ""
        self.matched = False

    def push(self, text: str) -> str:
        """Text that may be shown now. After a match (`matched`), the rest is dropped for good."""
        if self.matched or not self._stops:
            return "" if self.matched else text
        held = self._held + text
        start = len(self._held)
        for offset, char in enumerate(text):
            found = self._advance(char)
            if found:
                self.matched = True
                self._held = ""
                end = start + offset + 1
                return held[: end if self._include else end - found]
        safe = len(held) - max(self._states)
        self._held = held[safe:]
        return held[:safe]

    def flush(self) -> str:
        """What was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> int:
        """Length of the stop string that ends at this character, or 0."""
        found = 0
        for i, stop in enumerate(self._stops):
            state = self._states[i]
            while state and stop[state] != char:
                state = self._failures[i][state - 1]
            if stop[state] == char:
                state += 1
            if state == len(stop):
                found = max(found, state)
                state = self._failures[i][state - 1]
            self._states[i] = state
        return found


def _failures(stop: str) -> list[int]:
    """For each prefix: the length of its longest proper prefix that is also its suffix."""
    table = [0] * len(stop)
    length = 0
    for i in range(1, len(stop)):
        while length and stop[i] != stop[length]:
            length = table[length - 1]
        if stop[i] == stop[length]:
            length += 1
        table[i] = length
    return table
