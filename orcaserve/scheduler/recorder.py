"""Recorder: who is told of everything that the scheduler is asked and answers, in that order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from orcaserve.core import Batch, IterationResult, Phase, Progress, Request
from orcaserve.scheduler.policies import Selection


@dataclass(frozen=True, slots=True)
class Standing:
    """How things stand: what somebody must know who is told only of what comes next.

    live: all live requests, in order of arrival. in_flight: batches, oldest first. last: those of the batch that
    returned last, as far as they are live, increments first.
    """

    live: Sequence[Request] = ()
    in_flight: Sequence[Batch] = ()
    last: Sequence[int] = ()


NOTHING = Standing()


def increments_first(batch: Batch) -> list[int]:
    """Its request ids, in the order in which a schedule log names them."""
    ids: dict[bool, list[int]] = {True: [], False: []}
    for entry in batch.entries:
        ids[entry.phase is Phase.INCREMENT].append(entry.request_id)
    return ids[True] + ids[False]


class Recorder(Protocol):
    """Called on the loop's thread, while the device waits: all but turn_over must be quick. Times: the loop's clock."""

    def arrived(self, request: Request, time: float) -> None: ...
    def refused(self, request: Request, time: float, why: str) -> None: ...
    def cancelled(self, request_id: int, time: float, news: Sequence[Progress]) -> None: ...
    def expired(self, news: Sequence[Progress], time: float) -> None: ...
    def handed_out(self, batch: Batch, selection: Selection, n_reserved: int, n_used: int, time: float) -> None: ...
    def returned(self, result: IterationResult, news: Sequence[Progress], time: float) -> None: ...
    def turn_over(self, time: float) -> None:
        """The next batches are under way and the news is reported: there is time now."""

    def ended(self, news: Sequence[Progress], time: float) -> None:
        """The loop has ended, with this news of those who were live."""


class NoRecord:
    """Forgets everything."""

    def arrived(self, request: Request, time: float) -> None: ...
    def refused(self, request: Request, time: float, why: str) -> None: ...
    def cancelled(self, request_id: int, time: float, news: Sequence[Progress]) -> None: ...
    def expired(self, news: Sequence[Progress], time: float) -> None: ...
    def handed_out(self, batch: Batch, selection: Selection, n_reserved: int, n_used: int, time: float) -> None: ...
    def returned(self, result: IterationResult, news: Sequence[Progress], time: float) -> None: ...
    def turn_over(self, time: float) -> None: ...
    def ended(self, news: Sequence[Progress], time: float) -> None: ...


class Watcher(Recorder, Protocol):
    """A recorder that may begin at any time."""

    def begin(self, standing: Standing) -> None:
        """Record from here on, where things stand so. Once more: as if from here on, with nothing lost in between."""


class Both:
    """Two recorders that are told the same."""

    def __init__(self, one: Recorder, other: Recorder) -> None:
        self._each = (one, other)

    def arrived(self, request: Request, time: float) -> None:
        for each in self._each:
            each.arrived(request, time)

    def refused(self, request: Request, time: float, why: str) -> None:
        for each in self._each:
            each.refused(request, time, why)

    def cancelled(self, request_id: int, time: float, news: Sequence[Progress]) -> None:
        for each in self._each:
            each.cancelled(request_id, time, news)

    def expired(self, news: Sequence[Progress], time: float) -> None:
        for each in self._each:
            each.expired(news, time)

    def handed_out(self, batch: Batch, selection: Selection, n_reserved: int, n_used: int, time: float) -> None:
        for each in self._each:
            each.handed_out(batch, selection, n_reserved, n_used, time)

    def returned(self, result: IterationResult, news: Sequence[Progress], time: float) -> None:
        for each in self._each:
            each.returned(result, news, time)

    def turn_over(self, time: float) -> None:
        for each in self._each:
            each.turn_over(time)

    def ended(self, news: Sequence[Progress], time: float) -> None:
        for each in self._each:
            each.ended(news, time)
