"""A recorder that begins in the midst of a run has, from there on, what one has that was there from the start."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orcaserve.config import POLICY_NAMES
from orcaserve.core import Batch, IterationResult, Request, SamplingParams
from orcaserve.schedule_log.format import Log, Settings
from orcaserve.schedule_log.reader import read_log
from orcaserve.schedule_log.recorder import Run, ScheduleRecorder
from orcaserve.scheduler import Scheduler
from orcaserve.scheduler.policies import PolicySettings, make_policy
from orcaserve.scheduler.recorder import Both
from orcaserve.simulation.reproduce import reproduce

LONGEST, N_SLOTS, MAX_BS = 32, 160, 4


class Memory:
    """A sink. parts: what would stand in each file."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, lines: bytes) -> None:
        self.parts[-1] += lines

    def next_part(self, header: bytes) -> None:
        self.parts.append(header)

    def close(self) -> None: ...

    def read(self, folder: Path, part: int) -> Log:
        path = folder / "one.log"
        path.write_bytes(self.parts[part])
        return read_log(path)


class Driven:
    """A scheduler that is asked whatever comes, by two recorders."""

    def __init__(self, policy: str, n_workers: int, seed: int) -> None:
        self.now, self.rng = 0.0, random.Random(seed)
        made_of = Settings(policy, MAX_BS, N_SLOTS, 4, n_workers, LONGEST, 1, True, "m")
        chooses = make_policy(policy, PolicySettings(n_workers, LONGEST, 1 if n_workers > 1 else None, True))
        self.scheduler = Scheduler(N_SLOTS, MAX_BS, n_workers, 4, chooses)
        self.kept, self.watched = Memory(), Memory()
        run = Run("r", 1.0, 0.0)
        self.recorder = ScheduleRecorder(made_of, self.kept, 2**62, lambda: self.now, run)
        self.recorder.begin()
        self.watcher = ScheduleRecorder(made_of, self.watched, 2**62, lambda: self.now, run, 1, flush_seconds=0.0)
        self.told: ScheduleRecorder | Both = self.recorder
        self.flight: list[Batch] = []
        self.n_events = self.n_requests = 0
        self.begun_at: list[int] = []  # events that there were when each part of the watch began

    def step(self) -> None:
        self.now += self.rng.choice([0.0, 1e-6, 0.01])
        what = self.rng.random()
        if what < 0.25:
            self.arrive()
        elif what < 0.32 and self.n_requests:
            request_id = self.rng.randint(1, self.n_requests)
            self.told.cancelled(request_id, self.now, self.scheduler.cancel(request_id))
            self.n_events += 1
        elif what < 0.65:
            self.hand_out()
        elif what < 0.95 and self.flight:
            self.take_back()
        else:
            self.told.turn_over(self.now)

    def arrive(self) -> None:
        self.n_requests += 1
        rng = self.rng
        n_input, asked = rng.randint(1, 16), rng.randint(1, 12)
        carried = [1] * rng.choice([0, 0, 0, asked // 2])
        stops = frozenset({0} if rng.random() < 0.5 else ())
        params = SamplingParams(max_tokens=asked)
        request = Request(self.n_requests, [1] * n_input, params, stops, output=carried)
        self.scheduler.add(request, self.now)
        self.told.arrived(request, self.now)
        self.n_events += 1

    def hand_out(self) -> None:
        batch = self.scheduler.next_batch(self.now)
        if batch is not None:
            self.flight.append(batch)
            s = self.scheduler
            self.told.handed_out(batch, s.selection, s.n_reserved, s.n_used, self.now)
            self.n_events += 1

    def take_back(self) -> None:
        batch = self.flight.pop(0)
        tokens = [self.rng.choice([0, 1, 1, 1, 1]) for _ in batch.entries]
        result = IterationResult(batch.iteration, tokens, seconds=0.001)
        self.told.returned(result, self.scheduler.complete(result), self.now)
        self.n_events += 1

    def watch(self) -> None:
        """Begin, or begin anew."""
        self.watcher.begin(self.scheduler.standing())
        self.told = Both(self.recorder, self.watcher)
        self.begun_at.append(self.n_events)

    def end(self) -> None:
        self.told.ended(self.scheduler.abort(None), self.now)
        self.n_events += 1


@pytest.mark.parametrize("policy", POLICY_NAMES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    n_workers=st.integers(1, 3),
    pieces=st.lists(st.integers(0, 60), min_size=2, max_size=5),
)
def test_from_the_midst_it_reads_as_the_tail(
    policy: str, tmp_path: Path, seed: int, n_workers: int, pieces: list[int]
) -> None:
    driven = Driven(policy, n_workers, seed)
    for i, n_steps in enumerate(pieces):
        if i:
            live = {request.id: len(request.output) for request in driven.scheduler.standing().live}
            driven.watch()
            header = driven.watched.read(tmp_path, -1)
            assert {known.id: n for known, n in header.live} == live
        for _ in range(n_steps):
            driven.step()
    driven.end()
    whole = list(driven.kept.read(tmp_path, 0).events)
    assert len(whole) == driven.n_events
    ends = [*driven.begun_at[1:], driven.n_events]
    for part, (begin, end) in enumerate(zip(driven.begun_at, ends, strict=True)):
        log = driven.watched.read(tmp_path, part)
        assert list(log.events) == whole[begin:end]
        assert not log.whole and not log.cut
    assert reproduce(driven.watched.read(tmp_path, -1)).difference is None


def test_what_is_recorded_before_it_begins_anew_is_told_first(tmp_path: Path) -> None:
    driven = Driven("iteration-level", 1, 0)
    driven.watch()
    driven.arrive()
    driven.hand_out()
    assert b'["a"' not in driven.watched.parts[0], "lines wait for the end of the turn"
    driven.watch()
    assert len(driven.watched.read(tmp_path, 0).events) == 2
    assert b'"in_flight":[[1,[1]]]' in driven.watched.parts[1]
