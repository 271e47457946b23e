"""A seed gives a request the same draws: alone and among others, in any parts, after an engine is gone, in PyTorch.

Draws are made of the request's seed and the token's place in the text (docs/determinism.md). Requests of
`some_requests` have all kinds of settings, and are more than a batch or the K/V region holds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from engine_runs import Running, settings, some_requests

from orcaserve.config import EngineConfig, SchedulerConfig
from orcaserve.core import Logprobs, Request, TokenLogprobs
from orcaserve.core import SamplingParams as Params

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def drawn_requests() -> list[Request]:
    """All of them drawn, and long enough that one other draw would show."""
    more = [Params(max_tokens=24, temperature=t, top_k=k) for t, k in ((0.7, 0), (1.0, 40), (1.6, 0), (2.0, 7))]
    others = [Request(100 + i, [3 + 5 * i], params, frozenset({2}), seed=i - 2) for i, params in enumerate(more)]
    return some_requests() + others


def deterministic(model: Path, p: int = 1, t: int = 1, n_slots: int = 160, **changes: object) -> EngineConfig:
    return replace(settings(model, p, t, n_slots), **changes)  # type: ignore[arg-type]


def one_by_one(engine: Running, requests: Sequence[Request]) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {}
    for request in requests:
        tokens |= engine.run([request])
    return tokens


@pytest.fixture(scope="module")
def expected(odd_model: Path) -> dict[int, list[int]]:
    with Running(deterministic(odd_model, deterministic=True)) as one:
        return one_by_one(one, drawn_requests())


def test_they_are_drawn(expected: dict[int, list[int]], odd_model: Path) -> None:
    """With other seeds every drawn text is another."""
    others = [replace(request, seed=request.seed + 1) for request in drawn_requests()]
    with Running(deterministic(odd_model)) as engine:
        tokens = engine.run(others)
    for request in others:
        assert (tokens[request.id] == expected[request.id]) == request.params.greedy, request.id


@pytest.mark.parametrize(("p", "t"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_in_any_company_and_parts(p: int, t: int, odd_model: Path, expected: dict[int, list[int]]) -> None:
    with Running(deterministic(odd_model, p, t, deterministic=True)) as engine:
        assert one_by_one(engine, drawn_requests()) == expected
        assert engine.run(drawn_requests()) == expected
        assert engine.run(drawn_requests()[::-1]) == expected


@pytest.mark.parametrize(("p", "t"), [(1, 1), (2, 2)])
def test_after_an_engine_is_gone(p: int, t: int, odd_model: Path, expected: dict[int, list[int]]) -> None:
    """Another one is given what had come, and goes on with the draw that comes next."""
    with Running(deterministic(odd_model, p, t, deterministic=True)) as engine:
        for kept in (1, 5):
            going_on = [
                replace(request, output=expected[request.id][:kept])
                for request in drawn_requests()
                if len(expected[request.id]) > kept
            ]
            tokens = engine.run(going_on)
            assert tokens == {request.id: expected[request.id][kept:] for request in going_on}


def test_in_pytorch(odd_model: Path, expected: dict[int, list[int]]) -> None:
    """Its numbers differ in their last bits, its draws are the same."""
    pytest.importorskip("torch")
    config = deterministic(odd_model)
    with Running(replace(config, model=replace(config.model, device="reference"))) as engine:
        assert engine.run(drawn_requests()) == expected


Numbers = dict[int, list[tuple[object, ...]]]


def described(told: TokenLogprobs) -> tuple[object, ...]:
    return told.logprob, told.rank, tuple(told.top_ids), tuple(told.top_logprobs)


def numbers(engine: Running, requests: Sequence[Request]) -> Numbers:
    """Of each request, what was told of its prompt's tokens and its own: floats, to be compared as they are."""
    found: Numbers = {request.id: [] for request in requests}
    n_live = len(requests)
    engine.host.submit(requests)
    while n_live:
        report = engine.news.get(timeout=60)
        assert not isinstance(report, str), report
        for news in report.progress:
            assert news.error is None, news.error
            own = news.logprobs or Logprobs()
            found[news.request_id] += [described(told) for told in own.prompt]
            if own.token is not None:
                found[news.request_id].append((news.token, *described(own.token)))
            n_live -= news.finish_reason is not None
    return found


def told_requests() -> list[Request]:
    """The same requests, which ask for log-probabilities of everything."""
    return [
        replace(request, params=replace(request.params, logprobs=5, prompt_logprobs=2)) for request in drawn_requests()
    ]


@pytest.fixture(scope="module")
def expected_numbers(odd_model: Path) -> Numbers:
    with Running(deterministic(odd_model, deterministic=True)) as engine:
        found: Numbers = {}
        for request in told_requests():
            found |= numbers(engine, [request])
    assert all(len(found[request.id]) > len(request.input_ids) for request in told_requests())
    return found


@pytest.mark.parametrize(("p", "t"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_log_probabilities_have_the_same_bits_in_any_company(
    p: int, t: int, odd_model: Path, expected_numbers: Numbers
) -> None:
    """Stages change none; shards add up in another order, and are compared with themselves."""
    with Running(deterministic(odd_model, p, t, deterministic=True)) as engine:
        alone: Numbers = {}
        for request in told_requests():
            alone |= numbers(engine, [request])
        assert t > 1 or alone == expected_numbers
        assert numbers(engine, told_requests()) == alone
        assert numbers(engine, told_requests()[::-1]) == alone


@pytest.mark.parametrize("form", ["float32", "int8"])
def test_log_probabilities_with_other_settings(form: str, odd_model: Path) -> None:
    """Threads, room, batch size, who chooses the batch, and an engine that goes on with what another had put out."""

    def engine(threads: int, n_slots: int, scheduler: SchedulerConfig) -> Running:
        config = deterministic(odd_model, n_slots=n_slots, scheduler=scheduler, deterministic=True)
        kept = {"dtype": "float32", "quantization": "none"} if form == "float32" else {"quantization": "int8"}
        model = replace(config.model, threads=threads, max_model_len=64, **kept)  # type: ignore[arg-type]
        return Running(replace(config, model=model, kv=replace(config.kv, dtype="auto")))

    with engine(1, 160, SchedulerConfig(2)) as one:
        usual = numbers(one, told_requests())
    for threads, n_slots, scheduler in (
        (2, 2048, SchedulerConfig(11)),
        (3, 256, SchedulerConfig(6, "request-level", microbatch_size=2)),
        (1, 256, SchedulerConfig(6, "cellular")),
        (2, 160, SchedulerConfig(8, "overcommit")),
    ):
        with engine(threads, n_slots, scheduler) as other:
            assert numbers(other, told_requests()) == usual, scheduler
    with engine(2, 512, SchedulerConfig(4)) as next_one:
        for request in told_requests():
            own = usual[request.id][len(request.input_ids) - 1 :]
            output = [token for token, *_ in own[:3]]
            if len(own) > 3:
                assert numbers(next_one, [replace(request, output=output)])[request.id][-len(own) + 3 :] == own[3:]
