"""Every policy on a real engine with a tiny model: who runs with whom changes no request's text."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue

import pytest

from orcaserve.config import POLICY_NAMES, EngineConfig, KVConfig, ModelConfig, PolicyName, SchedulerConfig
from orcaserve.core import ConfigError, IterationReport, Progress, Request, SamplingParams
from orcaserve.engine.host import EngineHost

LONGEST = 64
KINDS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=0, repetition_penalty=1.3, presence_penalty=0.5),
    SamplingParams(temperature=1.0, top_k=20, frequency_penalty=0.7),
)


def requests() -> list[Request]:
    rng = random.Random(5)
    made = []
    for i in range(12):
        kind = KINDS[i % len(KINDS)]
        params = SamplingParams(
            max_tokens=rng.randint(1, 20),
            temperature=kind.temperature,
            top_k=kind.top_k,
            repetition_penalty=kind.repetition_penalty,
            presence_penalty=kind.presence_penalty,
            frequency_penalty=kind.frequency_penalty,
        )
        made.append(Request(i, [rng.randrange(256) for _ in range(rng.randint(1, 30))], params, frozenset({2}), seed=i))
    return made


def run(
    model: Path, settings: SchedulerConfig, batches: Sequence[Sequence[Request]], n_slots: int = 4096
) -> tuple[dict[int, list[int]], IterationReport]:
    """The tokens of every request, and the last report. A batch is handed over when the one before has ended."""
    news: SimpleQueue[IterationReport] = SimpleQueue()
    config = EngineConfig(
        ModelConfig(model, "tiny", dtype="float32", threads=1, max_model_len=LONGEST),
        KVConfig(n_slots=n_slots),
        settings,
    )
    host = EngineHost.load(config, news.put)
    tokens: dict[int, list[int]] = {}
    try:
        for batch in batches:
            host.submit(batch)
            n_live = len(batch)
            while n_live:
                report = news.get(timeout=60)
                for each in report.progress:
                    n_live -= _take(each, tokens)
    finally:
        host.close()
    return tokens, report


def _take(news: Progress, tokens: dict[int, list[int]]) -> bool:
    assert news.error is None
    if news.token is not None:
        tokens.setdefault(news.request_id, []).append(news.token)
    return news.finish_reason is not None


@pytest.fixture(scope="module")
def alone(tiny_model: Path) -> Mapping[int, list[int]]:
    return run(tiny_model, SchedulerConfig(1), [[request] for request in requests()])[0]


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_the_text_is_the_one_of_a_request_alone(
    tiny_model: Path, alone: Mapping[int, list[int]], policy: PolicyName
) -> None:
    assert run(tiny_model, SchedulerConfig(5, policy), [requests()])[0] == alone


@pytest.mark.parametrize("settings", [{"microbatch_size": 2}, {"first_iteration": "whole"}])
def test_request_level_in_its_other_ways(
    tiny_model: Path, alone: Mapping[int, list[int]], settings: dict[str, object]
) -> None:
    config = SchedulerConfig(5, "request-level", **settings)  # type: ignore[arg-type]
    assert run(tiny_model, config, [requests()])[0] == alone


def test_preempted_requests_go_on_where_they_were(tiny_model: Path, alone: Mapping[int, list[int]]) -> None:
    tokens, last = run(tiny_model, SchedulerConfig(8, "overcommit"), [requests()], n_slots=96)
    assert tokens == alone
    assert last.status.n_preempted > 0 and last.status.n_recomputed > 0


@pytest.mark.parametrize("policy", ["request-level", "orca-max"])
def test_a_region_that_holds_no_request_of_the_longest_kind(tiny_model: Path, policy: PolicyName) -> None:
    with pytest.raises(ConfigError, match=f"--scheduling-policy: {policy} reserves 64 slots .* there are 48"):
        run(tiny_model, SchedulerConfig(5, policy), [], n_slots=48)
