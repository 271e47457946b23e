"""Beats: what a worker says of its own work, over and over, and who has come to a standstill by what is said.

A long iteration is no hang: what counts is whether pieces of work, far smaller than an iteration, are still begun. And
beats are counted, not seconds: a process that was stopped for a while itself has given none, and blames nobody.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass

IN_TIME = 8  # beats, at least, in the time after which work that does not move is taken for hung
IN_SILENCE = 4  # and in the time after which a worker that says nothing is taken for lost


@dataclass(frozen=True, slots=True)
class Beat:
    """One reading of a worker's device.

    busy: whether it has an iteration to run. n_run: how many it has run. progress: a number that changes whenever it
    begins a piece of an iteration. waits_for: names of the workers whose numbers it waits for; empty: it computes.
    """

    busy: bool = False
    n_run: int = 0
    progress: int = 0
    waits_for: str = ""


def period(device_timeout: float, worker_timeout: float = math.inf) -> float:
    """Seconds between two beats."""
    return min(device_timeout / IN_TIME, worker_timeout / IN_SILENCE)


class Standstills:
    """Looks at the beats of some workers, which are given from any thread.

        words = standstills.take(name, beat)

    n_beats: so many beats of one worker must be the same before anybody is blamed.
    """

    def __init__(self, names: Iterable[str], n_beats: int) -> None:
        self._n_beats = n_beats
        self._last = dict.fromkeys(names, Beat())
        self._n_same = dict.fromkeys(self._last, 0)
        self._lock = threading.Lock()

    @classmethod
    def within(cls, names: Iterable[str], device_timeout: float, worker_timeout: float = math.inf) -> Standstills:
        """For beats that come every `period`."""
        return cls(names, math.ceil(device_timeout / period(device_timeout, worker_timeout) - 1e-6))

    def take(self, name: str, beat: Beat) -> str | None:
        """What stands still by now, in words to put behind the worker's name, or None.

        Whoever computes without getting on is at fault. Whoever waits is not, unless nobody computes at all: then
        numbers are lost on their way.
        """
        with self._lock:
            same = beat == self._last[name]
            self._n_same[name] = self._n_same[name] + 1 if same else 0
            self._last[name] = beat
            if self._n_same[name] < self._n_beats or not beat.busy:
                return None
            if not beat.waits_for:
                return "hangs in the midst of an iteration: its device has begun nothing"
            if any(n < self._n_beats for n in self._n_same.values()):
                return None
            if any(other.busy and not other.waits_for for other in self._last.values()):
                return None  # its own beat is about to say so
            return f"waits for {beat.waits_for}, and no worker computes: nothing has moved"
