"""Logs of real runs give the same batches in the same order, under every policy; rotated and cut short ones too."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orcaserve.config import POLICY_NAMES, PolicyName, SchedulerConfig
from orcaserve.core import ConfigError, FinishReason, Terms
from orcaserve.schedule_log.explain import overview, tell
from orcaserve.schedule_log.format import Arrived, Expired, HandedOut, Over, Returned
from orcaserve.schedule_log.reader import read_log
from orcaserve.schedule_log.rotating_file import part_path
from orcaserve.scheduler.policies import Stop
from orcaserve.simulation.logged import cost_of, read_recorded
from orcaserve.simulation.reproduce import reproduce

Run = Callable[..., Path]


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_the_order_of_batches_is_reproduced(run_logged: Run, policy: PolicyName) -> None:
    path = run_logged(SchedulerConfig(5, policy), n_slots=80 if policy == "overcommit" else 512, seed=3)
    log = read_log(path)
    batches = [event for event in log.events if isinstance(event, HandedOut)]
    found = reproduce(log)
    assert (found.n_same, found.difference) == (len(batches), None)
    assert len([event for event in log.events if isinstance(event, Arrived)]) == 60
    assert isinstance(log.events[-1], Over) and log.whole and not log.cut
    assert {batch.stop for batch in batches} > {Stop.NOBODY_WAITS}, "somebody had to wait"
    if policy == "overcommit":
        assert any(batch.preempted for batch in batches)


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_requests_that_are_only_read(run_logged: Run, policy: PolicyName) -> None:
    """Among others: their batches are reproduced, they are told of, and they are no lives of tokens."""
    path = run_logged(SchedulerConfig(5, policy), n_slots=80 if policy == "overcommit" else 512, seed=8, only_read=0.3)
    log = read_log(path)
    read = [event.request.id for event in log.events if isinstance(event, Arrived) and event.request.asked == 0]
    assert len(read) > 5 and reproduce(log).difference is None
    recorded = read_recorded(log)
    assert not set(read) & set(recorded.ids) and recorded.n_left_out >= len(read)
    ended = {end.id: end for event in log.events if isinstance(event, Returned) for end in event.ends}
    some = next(number for number in read if number in ended and ended[number].why is FinishReason.LENGTH)
    story = tell(log, some)
    assert "which were only to be read" in story and "without a token" in story and "first token" not in story
    assert str(some) in overview(log, 60)


def test_request_level_in_microbatches(run_logged: Run) -> None:
    log = read_log(run_logged(SchedulerConfig(6, "request-level", 2, "whole")))
    assert reproduce(log).difference is None


CLIENTS = ["", "sk-secret-1", "10.0.0.7"]


def _any_terms(rng: random.Random) -> Terms:
    return Terms(
        client=rng.choice(CLIENTS),
        weight=rng.choice([1.0, 2.5]),
        priority=rng.choice([0, 0, 0, -1, 3]),
        background=rng.random() < 0.3,
        timeout=rng.choice([None, 0.004, 30.0]),
        first_token=rng.choice([None, 0.003, 30.0]),
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"fairness": "tokens"},
        {"max_num_batched_tokens": 12},
        {"target_itl": 0.001},
        {"fairness": "tokens", "max_num_batched_tokens": 20, "target_itl": 0.002},
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_runs_on_all_terms(run_logged: Run, settings: dict[str, Any], seed: int) -> None:
    """Bounds, also such as rest on what iterations took, order among clients, background and deadlines: all of it
    comes out again of what the log says; and the log does not say who the clients are."""
    config = SchedulerConfig(5, **settings)
    path = run_logged(config, n_requests=120, n_slots=160, seed=seed, pauses=0.3, terms=_any_terms)
    text = path.read_text()
    assert "secret" not in text and "10.0.0.7" not in text and '"client":2' in text
    log = read_log(path)
    batches = [event for event in log.events if isinstance(event, HandedOut)]
    found = reproduce(log)
    assert (found.n_same, found.difference) == (len(batches), None)
    known = [event.request.terms for event in log.events if isinstance(event, Arrived)]
    assert {terms.client for terms in known} == {"", "1", "2"} and {terms.weight for terms in known} == {1.0, 2.5}
    assert any(isinstance(event, Expired) for event in log.events), "nobody was late"
    if settings.keys() == {"max_num_batched_tokens"}:
        assert any(piece.n_to_come for batch in batches for piece in batch.initiations)
    overview(log, 60)
    for event in log.events:
        if isinstance(event, Arrived):
            tell(log, event.request.id)
    other = replace(log, settings=replace(log.settings, batched_tokens=5, target_itl=None))
    assert reproduce(other).difference is not None
    read_recorded(log)


def test_other_settings_give_another_order(run_logged: Run) -> None:
    """The check can fail."""
    log = read_log(run_logged(SchedulerConfig(5)))
    other = replace(log, settings=replace(log.settings, max_bs=4))
    difference = reproduce(other).difference
    assert difference is not None and "less than recorded" in difference


@pytest.mark.parametrize("policy", ["iteration-level", "request-level", "overcommit"])
def test_a_log_that_is_cut_anywhere(run_logged: Run, policy: PolicyName, tmp_path: Path) -> None:
    """As a killed engine leaves it: what is there is read, and reproduced."""
    whole = run_logged(SchedulerConfig(4, policy), n_slots=256, seed=5).read_bytes()
    cut = tmp_path / "cut.log"
    for size in range(whole.index(b"\n") + 1, len(whole), 977):  # the header is whole
        cut.write_bytes(whole[:size])
        log = read_log(cut)
        assert log.cut == (whole[size - 1 : size] != b"\n")
        assert reproduce(log).difference is None


def test_parts_are_one_run_and_the_oldest_go(run_logged: Run) -> None:
    path = run_logged(SchedulerConfig(4), n_requests=1500, part_bytes=64 * 2**10, n_files=3, pauses=0.7)
    paths = [part_path(path, age) for age in range(4)]
    assert [p.exists() for p in paths] == [True, True, True, False]
    assert all(p.stat().st_size < 2 * 64 * 2**10 + 2**15 for p in paths[:3])
    headers = [json.loads(p.read_bytes().split(b"\n", 1)[0]) for p in paths[:3]]
    assert [header["part"] for header in headers] == [headers[0]["part"] - age for age in range(3)]
    log = read_log(path)
    assert not log.whole and len(log.events) > 1000
    found = reproduce(log)
    assert found.difference is None and found.n_same > 100
    for p in paths[1:3]:
        p.unlink()
    assert len(read_log(path).events) < len(log.events)


def test_another_run_keeps_what_the_one_before_has_written(run_logged: Run, tmp_path: Path) -> None:
    first, second = (run_logged(SchedulerConfig(4), n_requests=10, seed=seed) for seed in (1, 2))
    part_path(second, 1).write_bytes(first.read_bytes())
    assert read_log(second).whole, "the older file is of another run"


def test_what_a_simulation_reads_of_it(run_logged: Run) -> None:
    log = read_log(run_logged(SchedulerConfig(5), seed=9))
    recorded = read_recorded(log)
    ended = {end.id: end for event in log.events if not isinstance(event, Arrived | HandedOut) for end in event.ends}
    assert set(recorded.ids) == {i for i, end in ended.items() if end.n_output}
    for request_id, life in zip(recorded.ids, recorded.outcome.lives, strict=True):
        assert len(life.token_times) == life.arrival.n_output == ended[request_id].n_output
        assert life.token_times == sorted(life.token_times) and life.token_times[0] > life.arrival.time
    n_returned = sum(isinstance(event, Returned) for event in log.events)
    assert len(recorded.samples) == recorded.outcome.n_iterations == n_returned
    assert sum(sample.shape.n_requests for sample in recorded.samples) == sum(
        len(event.ids) for event in log.events if isinstance(event, HandedOut)
    )
    cost_of(log, recorded)


def test_too_little_for_a_simulation(run_logged: Run) -> None:
    log = read_log(run_logged(SchedulerConfig(5), n_requests=1))
    with pytest.raises(ConfigError, match=r"run.log: \d+ iterations are too few"):
        cost_of(log, read_recorded(log))
