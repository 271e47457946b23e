"""Any policy under the real scheduler, and a worker's memory that obeys and complains. No model: tokens are made up."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from orcaserve.core import (
    Batch,
    CannotFit,
    FinishReason,
    IterationResult,
    Phase,
    Progress,
    Request,
    RequestState,
    SamplingParams,
)
from orcaserve.core.window import window_for
from orcaserve.scheduler import Scheduler
from orcaserve.scheduler.policies import PolicySettings, make_policy

LONGEST = 48  # tokens of the longest request
PAGE = 4


@dataclass
class Fate:
    """What a request is to be, and what was heard of it. It ends by itself after n_output tokens."""

    request: Request
    n_output: int
    tokens: list[int] = field(default_factory=list)
    reason: FinishReason | None = None
    n_iterations: int = 0  # batches it was in
    first_told: int | None = None  # iteration after which its first news came


@dataclass
class Worker:
    """Pages as the K/V manager hands them out, and the input tokens of every request as they came."""

    n_pages: int
    window: int | None = None
    gone: dict[int, int] = field(default_factory=dict)  # pages that requests have left behind
    tokens: dict[int, list[int]] = field(default_factory=dict)
    complete: set[int] = field(default_factory=set)  # those whose initiation has come

    def run(self, batch: Batch) -> None:
        for request_id in batch.drops:
            del self.tokens[request_id]  # KeyError: dropped twice, or never here
            self.complete.discard(request_id)
            self.gone.pop(request_id, None)
        for entry in batch.entries:
            own = self.tokens.setdefault(entry.request_id, [])
            assert entry.position == len(own)
            assert (entry.phase is Phase.INITIATION) == (entry.request_id not in self.complete)
            own += entry.tokens
            assert len(own) <= LONGEST
            if entry.phase is Phase.INITIATION and not entry.n_to_come:
                self.complete.add(entry.request_id)
        n_filled = sum(-(-len(own) // PAGE) for own in self.tokens.values())
        assert n_filled - sum(self.gone.values()) <= self.n_pages, "out of memory"
        if self.window is not None:
            for entry in batch.entries:
                self.gone[entry.request_id] = max(len(self.tokens[entry.request_id]) - self.window + 1, 0) // PAGE


class Drive:
    """A scheduler with n_pages of K/V, and what goes through it. Requests are numbered from 0 in order of arrival."""

    def __init__(
        self, policy: str, n_pages: int, max_bs: int, n_workers: int, settings: PolicySettings, window: int | None
    ) -> None:
        self.policy = make_policy(policy, settings)
        self.window = window_for(window, n_pages * PAGE, PAGE)
        self.scheduler = Scheduler(n_pages * PAGE, max_bs, n_workers, PAGE, self.policy, window=self.window)
        self.max_bs = max_bs
        self.worker = Worker(n_pages, self.window)
        self.fates: list[Fate] = []
        self.in_flight: deque[Batch] = deque()
        self.batches: list[Batch] = []

    def add(self, n_input: int, n_output: int, max_tokens: int, carried: int = 0) -> bool:
        """False if it was refused: it could never fit."""
        number = len(self.fates)
        params = SamplingParams(max_tokens=max_tokens)
        prompt = [100 * number + i for i in range(n_input)]
        request = Request(number, prompt, params, frozenset({-1}), output=[7] * carried)
        try:
            self.scheduler.add(request, float(number))
        except CannotFit:
            return False
        self.fates.append(Fate(request, n_output))
        return True

    def cancel(self, number: int) -> None:
        self._hear(self.scheduler.cancel(number))
        self.check()

    def next_batch(self) -> Batch | None:
        batch = self.scheduler.next_batch()
        self.check()
        if batch is None:
            return None
        assert 1 <= len(batch.entries) <= self.max_bs
        ids = [entry.request_id for entry in batch.entries]
        assert ids == sorted(ids), "in order of arrival"
        self.worker.run(batch)
        for entry in batch.entries:
            self.fates[entry.request_id].n_iterations += 1
        self.in_flight.append(batch)
        self.batches.append(batch)
        return batch

    def complete(self, failing: int | None = None) -> None:
        """The oldest batch returns. A token is its request's number, or -1, which ends it."""
        batch = self.in_flight.popleft()
        tokens = []
        for entry in batch.entries:
            fate = self.fates[entry.request_id]
            last = len(fate.request.output) + 1 >= fate.n_output
            tokens.append(-1 if last and not entry.n_to_come else entry.request_id)
        failures = {failing: "broken"} if failing in {entry.request_id for entry in batch.entries} else {}
        self._hear(self.scheduler.complete(IterationResult(batch.iteration, tokens, failures)))
        self.check()

    def abort(self) -> None:
        self.in_flight.clear()
        self.worker = Worker(self.worker.n_pages, self.window)
        self._hear(self.scheduler.abort("gone"))
        self.check()

    def drain(self) -> None:
        """Whatever the state, everyone gets to the end."""
        for _ in range(20_000):
            while self.next_batch() is not None:
                pass
            if not self.in_flight:
                break
            self.complete()
        assert all(fate.reason is not None for fate in self.fates), "some never ended"
        status = self.scheduler.status()
        assert status.n_live == status.n_reserved == status.n_used == 0

    def check(self) -> None:
        self.scheduler.check_invariants()
        live = [fate for fate in self.fates if fate.reason is None]
        assert self.scheduler.status().n_live == len(live)
        assert all(fate.request.state is not RequestState.FINISHED for fate in live)

    def _hear(self, news: list[Progress]) -> None:
        for each in news:
            fate = self.fates[each.request_id]
            assert fate.reason is None, "news of one that has ended"
            if fate.first_told is None:
                fate.first_told = self.scheduler.status().iteration
            if each.token is not None:
                fate.tokens.append(each.token)
            if (reason := each.finish_reason) is not None:
                fate.reason = reason
                if reason in (FinishReason.STOP, FinishReason.LENGTH):
                    carried = fate.request.n_carried
                    assert fate.tokens == fate.request.output[carried:]
                    assert len(fate.request.output) == max(
                        min(fate.n_output, fate.request.params.max_tokens), carried + 1
                    )


def drive(
    policy: str, n_pages: int = 1000, max_bs: int = 4, n_workers: int = 1, *, microbatch: int | None = None,
    shortest_first: bool = True, window: int | None = None,
) -> Drive:  # fmt: skip
    settings = PolicySettings(n_workers, LONGEST, microbatch, shortest_first)
    return Drive(policy, n_pages, max_bs, n_workers, settings, window)
