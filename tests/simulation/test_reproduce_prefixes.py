"""A schedule log of requests that share prefixes: read, told and reproduced, without a token in it."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orcaserve.core import (
    USUAL,
    Batch,
    ConfigError,
    FinishReason,
    IterationResult,
    Pooling,
    Request,
    SamplingParams,
    Terms,
)
from orcaserve.schedule_log.explain import tell
from orcaserve.schedule_log.format import HandedOut, Log, Returned, Settings
from orcaserve.schedule_log.reader import read_log
from orcaserve.schedule_log.recorder import ScheduleRecorder
from orcaserve.schedule_log.rotating_file import RotatingFile
from orcaserve.scheduler import Scheduler
from orcaserve.scheduler.policies import EvenBatches, SchedulingPolicy, make_policy
from orcaserve.scheduler.prefix_cache import PrefixCache
from orcaserve.simulation.logged import read_recorded
from orcaserve.simulation.reproduce import policy_settings, reproduce

STOP = 0


def record(
    path: Path, seed: int, n_slots: int, n_workers: int, page: int = 4, part_bytes: int = 2**22, users: bool = False,
    window: int | None = None,
) -> Log:  # fmt: skip
    """A random run: conversations, equal prompts together, cancels, failures, few slots. users: also pieces, clients,
    background, salts and deadlines. window: of the model; most texts are longer."""
    rng = random.Random(seed)
    limit = rng.choice([None, 30])
    settings = Settings(
        "iteration-level", 4, n_slots, page, n_workers, 256, model="tiny", prefix_caching=True, shareable=limit,
        window=window,
    )  # fmt: skip
    policy: SchedulingPolicy = EvenBatches(n_workers)
    if users:
        settings = replace(settings, fairness="tokens", batched_tokens=9)
        policy = make_policy("iteration-level", policy_settings(settings))
    scheduler = Scheduler(n_slots, 4, n_workers, page, policy, PrefixCache(page, limit), window)
    now = 0.0
    recorder = ScheduleRecorder(settings, RotatingFile(path, 9), part_bytes, lambda: now)
    recorder.begin()
    in_flight: deque[Batch] = deque()
    requests: list[Request] = []
    n_live = 0
    for step in range(700):
        now += 0.001
        dice = rng.random()
        if dice < 0.25 and n_live < 12 and step < 600:
            text: list[int] = []
            if requests and rng.random() < 0.8:
                one = rng.choice(requests[-10:])
                text = [*one.input_ids, *one.output]
                text = text[: rng.randint(0, len(text))][:40]
            text += [rng.randint(1, 3) for _ in range(rng.randint(1, 6))]
            if window is not None:
                text *= rng.choice([1, 6])
            scored = 0 if rng.random() < 0.1 else None
            params = SamplingParams(max_tokens=rng.randint(1, 14), prompt_logprobs=scored)
            if rng.random() < 0.1:
                params = SamplingParams(max_tokens=0, pooling=rng.choice(list(Pooling)))
            terms = _any_terms(rng) if users else USUAL
            request = Request(len(requests), text, params, frozenset({STOP}), terms=terms)
            requests.append(request)
            scheduler.add(request, now)
            recorder.arrived(request, now)
            n_live += 1
        elif dice < 0.28 and requests:
            request_id = len(requests) - rng.randint(1, min(8, len(requests)))
            news = scheduler.cancel(request_id)
            recorder.cancelled(request_id, now, news)
            n_live -= len(news)
        elif dice < 0.65 and in_flight:
            batch = in_flight.popleft()
            tokens = [rng.randint(0, 3) for _ in batch.entries]
            failures = {batch.entries[0].request_id: "bad"} if rng.random() < 0.03 else {}
            result = IterationResult(batch.iteration, tokens, failures, 0.01)
            news = scheduler.complete(result)
            recorder.returned(result, news, now)
            n_live -= sum(each.finish_reason is not None for each in news)
        elif late := scheduler.expire(now):
            recorder.expired(late, now)
            n_live -= len(late)
        elif (handed := scheduler.next_batch(now)) is not None:
            recorder.handed_out(handed, scheduler.selection, scheduler.n_reserved, scheduler.n_used, now)
            in_flight.append(handed)
        recorder.turn_over(now)
        scheduler.check_invariants()
    recorder.ended(scheduler.abort(None), now)
    return read_log(path)


def _any_terms(rng: random.Random) -> Terms:
    return Terms(
        client=rng.choice(["", "one", "two"]),
        weight=rng.choice([1.0, 2.5]),
        priority=rng.choice([0, 0, 0, -1]),
        background=rng.random() < 0.5,
        timeout=rng.choice([None, 0.03, 0.05, 30.0]),
        first_token=rng.choice([None, None, 0.01, 30.0]),
    )


@pytest.mark.parametrize("n_slots", [64, 100, 200])
@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_with_many_users_too(tmp_path: Path, n_slots: int, n_workers: int) -> None:
    """Also of who ran past its timeout, and gave pages to others before. How batches are divided among several workers
    depends on what those who wait would share, of which the log knows only if they came to share it: then it is only
    checked that nothing breaks."""
    n_taken = n_preempted = n_overdue = 0
    for seed in range(8):
        log = record(tmp_path / f"{seed}.log", seed, n_slots, n_workers, users=True)
        handed = [event for event in log.events if isinstance(event, HandedOut)]
        found = reproduce(log)
        assert len(handed) > 60
        if n_workers == 1:
            assert (found.n_same, found.difference) == (len(handed), None), f"seed {seed}"
        n_taken += sum(len(event.taken) for event in handed)
        n_preempted += sum(len(event.preempted) for event in handed)
        n_overdue += sum(
            end.why is FinishReason.ERROR and end.id not in event.failing
            for event in log.events
            if isinstance(event, Returned)
            for end in event.ends
        )
    assert n_taken > 50 and n_overdue > 0 and (n_preempted > 0 or n_slots > 64)


@pytest.mark.parametrize("users", [False, True])
def test_with_windows_too(tmp_path: Path, users: bool) -> None:
    n_pieces = n_taken = 0
    for seed in range(8):
        log = record(tmp_path / f"{seed}.log", seed, 40, 1, users=users, window=9)
        handed = [event for event in log.events if isinstance(event, HandedOut)]
        found = reproduce(log)
        assert (found.n_same, found.difference) == (len(handed), None), f"seed {seed}"
        n_pieces += sum(piece.n_to_come > 0 for event in handed for piece in event.initiations)
        n_taken += sum(len(event.taken) for event in handed)
    assert n_pieces > 20 and n_taken > 0


@pytest.mark.parametrize("n_slots", [64, 200, 1000])
@pytest.mark.parametrize("n_workers", [1, 2])
def test_comes_out_the_same(tmp_path: Path, n_slots: int, n_workers: int) -> None:
    n_taken = n_copied = n_twins = 0
    for seed in range(6):
        log = record(tmp_path / f"{seed}.log", seed, n_slots, n_workers)
        handed = [event for event in log.events if isinstance(event, HandedOut)]
        found = reproduce(log)
        assert found.difference is None
        assert found.n_same == len(handed) > 100
        n_taken += sum(len(event.taken) for event in handed)
        n_copied += sum(bool(taken.copied) for event in handed for taken in event.taken)
        n_twins += sum(bool(filled.twin) for event in handed for filled in event.filled)
        assert read_recorded(log).outcome.n_iterations > 100
    assert n_taken > 50 and n_copied > 20
    assert n_twins > 0 or n_slots == 64


def test_what_was_shared_is_told(tmp_path: Path) -> None:
    log = record(tmp_path / "run.log", 1, 1000, 1)
    piece = max(
        (piece for event in log.events if isinstance(event, HandedOut) for piece in event.initiations),
        key=lambda piece: piece.n_cached,
    )
    assert piece.n_cached > 8
    assert f"{piece.n_cached} more were there already" in tell(log, piece.id)


def test_without_its_beginning_it_is_not_compared(tmp_path: Path) -> None:
    record(tmp_path / "run.log", 1, 1000, 1, part_bytes=4000)
    parts = sorted(tmp_path.glob("run.log*"))
    assert len(parts) > 2
    parts[-1].unlink()  # the oldest
    found = reproduce(read_log(tmp_path / "run.log"))
    assert (found.n_same, found.difference) == (0, None)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda end: {**end, "cached": [[1, 2]]}, r"cached\) must hold lists of 4 values"),
        (lambda end: {**end, "cached": [[10**6, 4, "1", 0]]}, "does not begin in this batch"),
        (lambda end: {**end, "kept": [[10**6, 1, 1, 0]]}, "is not in it"),
        (lambda end: {**end, "kept": [[1, -1, 1, 0]]}, r"kept\) must hold lists of 4 values"),
        (lambda end: {**end, "cached": [[1, 4, "x", 0]]}, "no list of blocks"),
        (lambda end: {**end, "cached": 3}, r"cached\) must hold"),
    ],
)
def test_damage(tmp_path: Path, spoil: Callable[[dict[str, object]], dict[str, object]], message: str) -> None:
    path = tmp_path / "run.log"
    record(path, 1, 1000, 1)
    lines = path.read_text().splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith('["b"') and line.endswith("}]"))
    fields = json.loads(lines[place])
    lines[place] = json.dumps([*fields[:-1], spoil(fields[-1])])
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ConfigError, match=message):
        read_log(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("prefix_caching", 1), ("shareable", -3), ("shareable", "x"), ("window", 1), ("window", "x"), ("window", 1000)],
)
def test_damaged_settings(tmp_path: Path, name: str, value: object) -> None:
    path = tmp_path / "run.log"
    record(path, 1, 1000, 1)
    head, _, rest = path.read_text().partition("\n")
    header = json.loads(head)
    header["settings"][name] = value
    path.write_text(json.dumps(header) + "\n" + rest)
    with pytest.raises(ConfigError, match=f"settings.{name}"):
        read_log(path)
