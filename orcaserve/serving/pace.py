"""Pace: how quickly the engines work, by what their reports say, and how long outputs become."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orcaserve.core import EngineStatus

WINDOW = 10.0  # s of work after which an iteration counts 1/e of a new one
ENOUGH = 1.0  # s of work that make a rate
KEPT = 0.995  # of what is known of the lengths of outputs, with each further one
PRIOR_TOKENS = 512.0  # before anything is known: one output in so many tokens comes to its own end


class Rate:
    """Something a second, of late."""

    def __init__(self) -> None:
        self._amount = self.seconds = 0.0

    def add(self, amount: float, seconds: float) -> None:
        kept = math.exp(-seconds / WINDOW)
        self._amount = kept * self._amount + amount
        self.seconds = kept * self.seconds + seconds

    @property
    def value(self) -> float | None:
        return self._amount / self.seconds if self._amount > 0 and self.seconds > 0 else None


class _Engine:
    """One engine's pace. all_tokens: of all iterations; full: of those that somebody waited for."""

    def __init__(self) -> None:
        self.all_tokens, self.full, self.prompts, self.iterations = Rate(), Rate(), Rate(), Rate()
        self.last = EngineStatus()
        self.last_at = 0.0


class Pace:
    """Fed with every report. Rates are of wall-clock time while there is work, so they hold whatever lies between two
    iterations, and however many are in flight.
    """

    def __init__(self, n_engines: int, n_workers: int) -> None:
        self._engines = [_Engine() for _ in range(n_engines)]
        self._n_workers = n_workers

    def on_report(self, number: int, status: EngineStatus, now: float) -> None:
        engine = self._engines[number]
        last, last_at = engine.last, engine.last_at
        if status.iteration == last.iteration:
            return
        engine.last, engine.last_at = status, now
        follows = status.iteration > last.iteration and last.n_live > 0
        seconds = now - last_at if follows else status.iteration_seconds
        if seconds <= 0:
            return
        engine.all_tokens.add(status.batch_tokens, seconds)
        engine.iterations.add(1, seconds)
        if status.n_waiting > 0:
            engine.full.add(status.batch_tokens, seconds)
        if status.batch_initiations > 0:
            engine.prompts.add(status.batch_tokens, seconds)

    @property
    def tokens(self) -> float | None:
        """Input tokens a second of all engines: as they are when requests wait, if that was seen of late, for a batch
        that is not full is slower by the token. None before the first report."""
        return _sum(
            [
                engine.full.value if engine.full.seconds >= ENOUGH else engine.all_tokens.value
                for engine in self._engines
            ]
        )

    @property
    def prompt_tokens(self) -> float | None:
        """Input tokens a second of an engine's iterations that begin requests."""
        rates = [rate for engine in self._engines if (rate := engine.prompts.value) is not None]
        return sum(rates) / len(rates) if rates else None

    @property
    def between_tokens(self) -> float | None:
        """Seconds between two tokens of a request, of late."""
        rates = [rate for engine in self._engines if (rate := engine.iterations.value) is not None]
        return self._n_workers * len(rates) / sum(rates) if rates else None


class OutputLengths:
    """How many tokens are still to come of a request that may have at most so many.

    Each token is the last one by the same chance: as often as outputs ended by themselves, by the tokens that were put
    out in all. Those that were cut at their most tokens count among the latter only, so short limits deceive nobody.
    """

    def __init__(self) -> None:
        self._ends, self._tokens = 1.0, PRIOR_TOKENS

    def note(self, n_tokens: int, by_itself: bool) -> None:
        self._ends = KEPT * self._ends + by_itself
        self._tokens = KEPT * self._tokens + n_tokens

    def expected(self, most: int, ends_by_itself: bool = True) -> float:
        if not ends_by_itself or most <= 1:
            return float(max(most, 0))
        chance = min(self._ends / max(self._tokens, 1.0), 1.0)
        if chance * most < 1e-6:
            return float(most)
        return (1 - (1 - chance) ** most) / chance


def _sum(rates: Sequence[float | None]) -> float | None:
    """Of those that are known, as if the others were like them."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) * len(rates) / len(known) if known else None
