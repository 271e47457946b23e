"""MeasuredEngine: the counts behind the figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orcaserve.config import EngineConfig, KVConfig, ModelConfig, SchedulerConfig
from orcaserve.core import InvalidRequest
from orcaserve.evaluation.measured_engine import MeasuredEngine


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[MeasuredEngine]:
    config = EngineConfig(
        ModelConfig(tiny_model, "tiny", threads=1), KVConfig(n_slots=256), SchedulerConfig(max_bs=4)
    )  # fmt: skip
    with MeasuredEngine(config) as engine:
        yield engine


def test_every_request_gets_its_tokens_in_time(engine: MeasuredEngine) -> None:
    run = engine.run(engine.random_prompts(3, 8), 5)
    assert [len(times) for times in run.token_times] == [5, 5, 5]
    assert all(times == sorted(times) for times in run.token_times)
    assert len(run.first_token_seconds) == 3 and len(run.gaps) == 3 * 4
    assert run.decode_seconds == pytest.approx(max(times[-1] for times in run.token_times) - run.token_times[-1][0])
    assert run.seconds >= max(run.first_token_seconds) > 0
    assert [(i.requests, i.tokens) for i in run.iterations] == [(3, 24), *[(3, 3)] * 4]
    assert all(0 < i.seconds < run.seconds for i in run.iterations)


def test_more_requests_than_places_still_end(engine: MeasuredEngine) -> None:
    run = engine.run(engine.random_prompts(6, 8), 3)
    assert [len(times) for times in run.token_times] == [3] * 6


def test_prompts_differ_from_run_to_run_and_fit_the_vocabulary(engine: MeasuredEngine) -> None:
    first, second = engine.random_prompts(2, 50), engine.random_prompts(2, 50)
    assert first[0] != first[1] != second[0] != first[0]
    assert all(0 <= token < 256 for prompt in (*first, *second) for token in prompt)


def test_what_cannot_be_served_is_refused(engine: MeasuredEngine) -> None:
    with pytest.raises(InvalidRequest, match="the K/V region holds 256"):
        engine.run(engine.random_prompts(1, 250), 10)
