"""Log-probabilities of the native sampler, against numpy in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from orcaserve.core.logprobs import MAX_TOP_LOGPROBS, TokenLogprobs
from orcaserve.core.sampling_params import SamplingParams
from orcaserve.native import _kernels
from orcaserve.native.sampler import Sampler

Floats = NDArray[np.float32]
LOGITS = np.array([2.0, 1.0, 0.5, 0.0, -1.0, -3.0], np.float32)


@pytest.fixture(autouse=True, scope="module", params=_kernels.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _kernels.isa()
    _kernels.set_isa(request.param)
    yield request.param
    _kernels.set_isa(before)


@pytest.fixture(scope="module")
def team() -> _kernels.Team:
    return _kernels.Team(2)


def params(**options: Any) -> SamplingParams:
    return SamplingParams(**({"max_tokens": 10_000, "seed": 1} | options))


def expected_logprobs(logits: Floats, token: int, n_top: int) -> TokenLogprobs:
    x = logits.astype(np.float64)
    logprobs = x - x.max() - np.log(np.exp(x - x.max()).sum())
    order = np.argsort(-x, kind="stable")[:n_top]
    return TokenLogprobs(
        float(logprobs[token]), 1 + int((x > x[token]).sum()), order.tolist(), logprobs[order].tolist()
    )


def assert_close(got: TokenLogprobs, expected: TokenLogprobs) -> None:
    assert (got.rank, got.top_ids) == (expected.rank, expected.top_ids)
    assert [got.logprob, *got.top_logprobs] == pytest.approx(
        [expected.logprob, *expected.top_logprobs], rel=3e-7, abs=2e-6
    )


def sample_with_logprobs(
    team: _kernels.Team, logits: Floats, requests: Sequence[SamplingParams], n_top: Mapping[int, int]
) -> tuple[list[int], dict[int, str], dict[int, TokenLogprobs]]:
    sampler = Sampler(team)
    for r, p in enumerate(requests):
        sampler.admit(r, (1, 2, 3), p, frozenset({2}), p.seed or 0)
    return sampler.sample_with_logprobs(logits.copy(), range(len(requests)), n_top)


@settings(max_examples=50)
@given(
    vocab=st.sampled_from([6, 100, 2503, 9001]),
    seed=st.integers(0, 1000),
    spread=st.sampled_from([0.0, 0.1, 3.0, 100.0]),
    n_top=st.lists(st.integers(0, MAX_TOP_LOGPROBS), min_size=4, max_size=4),
)
def test_logprobs_are_those_of_the_logits_as_they_came(
    isa: str, team: _kernels.Team, vocab: int, seed: int, spread: float, n_top: list[int]
) -> None:
    """Whatever penalties, biases and exclusions do to the choice, which is the same as without them."""
    rng = np.random.default_rng(seed)
    requests = [
        params(
            temperature=float(rng.choice([0.0, 0.8])),
            top_k=int(rng.choice([0, 5])),
            repetition_penalty=float(rng.choice([1.0, 1.5])),
            logit_bias={0: 3.0, vocab - 1: -3.0} if rng.random() < 0.5 else {},
            min_tokens=int(rng.choice([0, 2])),
            seed=int(rng.integers(2**60)),
        )
        for _ in range(5)
    ]
    logits = (rng.standard_normal((5, vocab)) * spread).astype(np.float32)
    wanted = dict(enumerate(n_top))  # the last request asks for none
    tokens, failures, logprobs = sample_with_logprobs(team, logits, requests, wanted)
    assert (tokens, failures, {}) == sample_with_logprobs(team, logits, requests, {})
    assert logprobs.keys() == wanted.keys()
    for r, got in logprobs.items():
        assert_close(got, expected_logprobs(logits[r], tokens[r], n_top[r]))


def test_logprobs_of_ties_and_of_logits_far_apart(team: _kernels.Team) -> None:
    tied = np.zeros((1, 5000), np.float32)
    tied[0, [7, 4999]] = 1.0
    (token,), _, logprobs = sample_with_logprobs(team, tied, [params(temperature=0, logit_bias={4999: 1.0})], {0: 4})
    assert token == 4999
    assert_close(logprobs[0], expected_logprobs(tied[0], 4999, 4))
    assert (logprobs[0].rank, logprobs[0].top_ids) == (1, [7, 4999, 0, 1])
    apart = np.full((1, 5000), -3e38, np.float32)
    apart[0, 100] = 3e38
    apart[0, 200] = 0.0
    (token,), _, logprobs = sample_with_logprobs(team, apart, [params()], {0: 3})
    assert (token, logprobs[0].top_ids, logprobs[0].logprob) == (100, [100, 200, 0], 0.0)


def test_requests_that_cannot_go_on_have_no_logprobs(team: _kernels.Team) -> None:
    logits = np.tile(LOGITS, (3, 1))
    logits[0, 0] = math.nan
    requests = [params(), params(logit_bias={6: 1.0}), params()]
    tokens, failures, logprobs = sample_with_logprobs(team, logits, requests, {0: 1, 1: 1, 2: 1})
    assert failures.keys() == {0, 1}
    assert logprobs.keys() == {2}
    assert_close(logprobs[2], expected_logprobs(LOGITS, tokens[2], 1))


@settings(max_examples=50)
@given(
    vocab=st.sampled_from([6, 100, 2503, 9001]),
    seed=st.integers(0, 1000),
    spread=st.sampled_from([0.0, 0.1, 3.0, 100.0]),
    n_top=st.lists(st.integers(0, MAX_TOP_LOGPROBS), min_size=1, max_size=5),
)
def test_given_tokens_are_scored(
    isa: str, team: _kernels.Team, vocab: int, seed: int, spread: float, n_top: list[int]
) -> None:
    """Any token of a row, the unlikeliest too; and requests that are sampled beside it feel nothing."""
    rng = np.random.default_rng(seed)
    n = len(n_top)
    logits = (rng.standard_normal((n, vocab)) * spread).astype(np.float32)
    tokens = rng.integers(vocab, size=n).tolist()
    tokens[0] = int(logits[0].argmin())
    sampler = Sampler(team)
    sampler.admit(0, (1,), params(temperature=0.8, repetition_penalty=1.3), frozenset(), 3)
    before = sampler.sample(logits[:1].copy(), [0])
    for row, own in enumerate(sampler.score(logits.copy(), tokens, n_top)):
        assert own is not None
        assert_close(own, expected_logprobs(logits[row], tokens[row], n_top[row]))
    other = Sampler(team)
    other.admit(0, (1,), params(temperature=0.8, repetition_penalty=1.3), frozenset(), 3)
    assert other.sample(logits[:1].copy(), [0]) == before
    assert sampler.sample(logits[:1].copy(), [0]) == other.sample(logits[:1].copy(), [0])


def test_rows_that_are_no_numbers_are_not_scored(team: _kernels.Team) -> None:
    logits = np.tile(LOGITS, (3, 1))
    logits[1, 2] = math.nan
    first, second, third = Sampler(team).score(logits, [5, 0, 1], [0, 1, 2])
    assert second is None and first is not None and third is not None
    assert_close(third, expected_logprobs(LOGITS, 1, 2))


@pytest.mark.parametrize("n_top", [-1, MAX_TOP_LOGPROBS + 1])
def test_a_number_of_logprobs_out_of_range_is_refused(team: _kernels.Team, n_top: int) -> None:
    with pytest.raises(ValueError, match="0 to 20"):
        sample_with_logprobs(team, LOGITS[None], [params()], {0: n_top})
