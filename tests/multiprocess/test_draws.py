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

from orcaserve.config import EngineConfig
from orcaserve.core import Request
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
