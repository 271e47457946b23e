"""The native sampler: single rows of every odd kind, what it remembers of a request, what it refuses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from orcaserve.core.sampling_params import SamplingParams
from orcaserve.model.reference import draw
from orcaserve.model.reference.sampler import Sampler as ReferenceSampler
from orcaserve.native import _kernels
from orcaserve.native.sampler import Sampler

Floats = NDArray[np.float32]
LOGITS = np.array([2.0, 1.0, 0.5, 0.0, -1.0, -3.0], np.float32)
NO_STOPS: frozenset[int] = frozenset()


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


def admit(
    sampler: Sampler | ReferenceSampler,
    request_id: int,
    p: SamplingParams,
    prompt: Sequence[int] = (0,),
    stop: frozenset[int] = NO_STOPS,
    output: Sequence[int] = (),
) -> None:
    sampler.admit(request_id, prompt, p, stop, p.seed or 0, output)


def sample_once(
    team: _kernels.Team,
    logits: Floats,
    p: SamplingParams,
    prompt: Sequence[int] = (0,),
    stop: frozenset[int] = NO_STOPS,
    mask: NDArray[np.uint32] | None = None,
) -> int:
    sampler = Sampler(team)
    admit(sampler, 7, p, prompt, stop)
    tokens, failures = sampler.sample(logits[None].copy(), [7], None if mask is None else {7: mask})
    assert not failures
    return tokens[0]


def mask_of(allowed: Sequence[int] | NDArray[np.int64], vocab: int) -> NDArray[np.uint32]:
    bits = np.zeros(-(-vocab // 32) * 32, np.uint8)
    bits[np.asarray(allowed, np.int64)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 0.0}, {"top_p": 1e-300}, {"min_p": 1.0}])
def test_limits_that_leave_the_best_token_alone(team: _kernels.Team, options: dict[str, Any]) -> None:
    logits = (np.random.default_rng(1).standard_normal(5000) * 4).astype(np.float32)
    for seed in range(50):
        assert sample_once(team, logits, params(**options, seed=seed)) == int(logits.argmax())


@pytest.mark.parametrize("options", [{}, {"top_p": 0.999}, {"top_k": 900}, {"top_k": 900, "top_p": 0.999}])
def test_min_p_parts_weights_that_nearly_reach_it_from_those_that_do(
    team: _kernels.Team, options: dict[str, Any]
) -> None:
    """One token stands out, 400 have a little more than 0.02 of its weight, 400 a little less."""
    weights = np.repeat([1.0, 0.02 * (1 + 2e-4), 0.02 * (1 - 2e-4)], [1, 400, 400])
    logits = np.log(weights).astype(np.float32)
    tokens = {sample_once(team, logits, params(min_p=0.02, seed=seed, **options)) for seed in range(300)}
    assert max(tokens) <= 400
    assert len(tokens) > 100


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-38, 9.9e-5, 1e-4, 1e-3])
def test_tiny_temperatures_are_greedy(team: _kernels.Team, temperature: float) -> None:
    logits = (np.random.default_rng(3).standard_normal(500) * 10).astype(np.float32)
    for seed in range(20):
        assert sample_once(team, logits, params(temperature=temperature, seed=seed)) == int(logits.argmax())


def test_huge_logits_do_not_overflow(team: _kernels.Team) -> None:
    logits = np.array([2.9e38, 3e38, -3e38], np.float32)
    for options in ({"temperature": 1e-3}, {"top_p": 0.5}, {"top_k": 2}, {"min_p": 0.1}):
        assert sample_once(team, logits, params(**options)) == 1
    for options in ({"temperature": 2.0}, {"top_p": 0.5}, {"temperature": 0.0}):  # 3e38 / 0.01 is beyond float32
        assert sample_once(team, logits, params(repetition_penalty=0.01, **options), prompt=(1,)) == 1


@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1000, 2047, 2050])  # among them the last whole block and the rest behind it
def test_logits_that_are_no_numbers_end_their_request_only(
    team: _kernels.Team, place: int, bad: float, options: dict[str, Any]
) -> None:
    sampler = Sampler(team)
    logits = np.random.default_rng(2).standard_normal((3, 2051)).astype(np.float32)
    p = params(**options, logit_bias={place: -5.0})
    good = sample_once(team, logits[2], p)
    for request in (1, 2, 3):
        admit(sampler, request, p)
    logits[1, place] = bad
    tokens, failures = sampler.sample(logits, [1, 2, 3])
    assert failures == {2: "the model's output is not a number"}
    assert tokens[1] == 0
    assert tokens[2] == good


@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}])
def test_no_token_left_ends_the_request_only(team: _kernels.Team, options: dict[str, Any]) -> None:
    sampler = Sampler(team)
    admit(sampler, 1, params(min_tokens=1, **options), stop=frozenset(range(6)))
    admit(sampler, 2, params(**options))
    admit(sampler, 3, params(**options))
    tokens, failures = sampler.sample(np.tile(LOGITS, (3, 1)), [1, 2, 3], {3: np.zeros(1, np.uint32)})
    assert failures == {1: "every token is excluded", 3: "every token is excluded"}
    assert tokens == [0, sample_once(team, LOGITS, params(**options)), 0]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}])
def test_a_single_token_left_is_taken(team: _kernels.Team, options: dict[str, Any]) -> None:
    vocab = 1111
    logits = np.random.default_rng(4).standard_normal(vocab).astype(np.float32)
    for survivor in (0, 555, vocab - 1):
        others = frozenset(range(vocab)) - {survivor}
        assert sample_once(team, logits, params(min_tokens=1, **options), stop=others) == survivor
        assert sample_once(team, logits, params(**options), mask=mask_of([survivor], vocab)) == survivor


def test_big_biases_decide(team: _kernels.Team) -> None:
    logits = (np.random.default_rng(6).standard_normal(3000) * 2).astype(np.float32)
    for options in ({"temperature": 0.0}, {}, {"top_p": 0.9}):
        assert sample_once(team, logits, params(logit_bias={2999: 100.0}, **options)) == 2999
    best = int(logits.argmax())
    assert sample_once(team, logits, params(logit_bias={best: -100.0}, temperature=0)) == int(np.argsort(logits)[-2])


def test_ids_outside_the_vocabulary_end_their_request_only(team: _kernels.Team) -> None:
    sampler = Sampler(team)
    admit(sampler, 1, params(logit_bias={6: 1.0}))
    admit(sampler, 2, params(temperature=0))
    admit(sampler, 3, params(stop_token_ids={6}))
    for _ in range(2):  # it is no better the second time
        tokens, failures = sampler.sample(np.tile(LOGITS, (3, 1)), [1, 2, 3])
        assert failures == {
            1: "logit_bias holds a token id outside 0..5",
            3: "stop_token_ids holds a token id outside 0..5",
        }
        assert tokens == [0, 0, 0]


def test_stop_and_prompt_ids_outside_the_vocabulary_are_passed_over(team: _kernels.Team) -> None:
    p = params(temperature=0, min_tokens=1, repetition_penalty=2.0)
    assert sample_once(team, LOGITS, p, prompt=(0, 6, 2**31 - 1), stop=frozenset({6, 1, 10**6})) == 0


def test_penalties_follow_the_output(team: _kernels.Team) -> None:
    logits = np.array([1.0, 0.9, 0.8], np.float32)
    for options, expected in [
        ({"presence_penalty": 0.15}, [0, 1, 0, 0]),  # .85 .9 .8 -> .85 .75 .8, and so on
        ({"frequency_penalty": 0.15}, [0, 1, 0, 2]),  # .85 .9 .8 -> .85 .75 .8 -> .7 .75 .8
        ({"repetition_penalty": 1.2}, [0, 1, 0, 0]),  # .83 .9 .67 -> .83 .75 .67
        ({}, [0, 0, 0, 0]),
    ]:
        sampler = Sampler(team)
        admit(sampler, 1, params(temperature=0, **options), prompt=(2,))
        assert [sampler.sample(logits[None].copy(), [1])[0][0] for _ in range(4)] == expected


def test_long_texts_go_on_as_in_the_pytorch_sampler(team: _kernels.Team) -> None:
    """Many ids seen and counted, in an order that is not theirs."""
    rng = np.random.default_rng(8)
    p = params(repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2, top_k=20)
    native, reference = Sampler(team), ReferenceSampler()
    prompt = rng.integers(0, 300, 400).tolist()
    admit(native, 1, p, prompt)
    admit(reference, 1, p, prompt)
    for _ in range(200):
        logits = rng.standard_normal((1, 300)).astype(np.float32)
        assert native.sample(logits.copy(), [1]) == reference.sample(torch.from_numpy(logits.copy()), [1])


def test_a_text_goes_on_alike_when_its_output_comes_back_as_input(team: _kernels.Team) -> None:
    sampler = Sampler(team)
    p = params(seed=9, repetition_penalty=1.1)
    admit(sampler, 1, p, prompt=(0, 1))
    text = [0, 1] + [sampler.sample(LOGITS[None].copy(), [1])[0][0] for _ in range(20)]
    admit(sampler, 2, p, prompt=text[:12])
    assert [sampler.sample(LOGITS[None].copy(), [2])[0][0] for _ in range(10)] == text[12:]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 29),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0.0, 0.7, 2.0]),
    st.sampled_from([-0.5, 0.0, 1.5]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0.5, 1.0, 1.3]),
    st.integers(0, 30),
)
def test_a_text_goes_on_alike_in_another_sampler(
    team: _kernels.Team, cut: int, seed: int, temperature: float, presence: float, frequency: float, repetition: float,
    min_tokens: int,
) -> None:  # fmt: skip
    """Wherever the first one was lost: penalties, minimum and draws continue, in either kind of sampler."""
    p = params(seed=seed, temperature=temperature, presence_penalty=presence, frequency_penalty=frequency,
               repetition_penalty=repetition, min_tokens=min_tokens)  # fmt: skip
    logits = np.random.default_rng(abs(seed)).standard_normal((30, 1, 40)).astype(np.float32) * 2
    stop, prompt = frozenset({1, 7, 9}), (3, 5, 3)
    whole, native, reference = Sampler(team), Sampler(team), ReferenceSampler()
    admit(whole, 1, p, prompt, stop)
    text = [whole.sample(row.copy(), [1])[0][0] for row in logits]
    admit(native, 1, p, prompt, stop, text[:cut])
    admit(reference, 1, p, prompt, stop, text[:cut])
    assert [native.sample(row.copy(), [1])[0][0] for row in logits[cut:]] == text[cut:]
    rest = [reference.sample(torch.from_numpy(row.copy()), [1])[0][0] for row in logits[cut:]]
    assert rest == text[cut:]


def test_ids_outside_the_vocabulary_are_found_after_output_too(team: _kernels.Team) -> None:
    p = params(logit_bias={6: 1.0})
    native, reference = Sampler(team), ReferenceSampler()
    admit(native, 1, p, output=[1, 2])
    admit(reference, 1, p, output=[1, 2])
    failed = native.sample(LOGITS[None].copy(), [1])
    assert failed == reference.sample(torch.from_numpy(LOGITS[None].copy()), [1])
    assert "logit_bias" in failed[1][1]


def test_seeds_of_either_sign_differ(team: _kernels.Team) -> None:
    def text(seed: int) -> list[int]:
        sampler = Sampler(team)
        admit(sampler, 1, params(seed=seed))
        return [sampler.sample(LOGITS[None].copy(), [1])[0][0] for _ in range(40)]

    assert text(5) == text(5)
    assert len({tuple(text(seed)) for seed in (5, 6, -5, -(2**63), 2**63 - 1)}) == 5


@given(seed=st.integers(0, 2**64 - 1), index=st.integers(0, 2**40))
def test_uniform_numbers_have_the_same_bits(isa: str, seed: int, index: int) -> None:
    assert _kernels.uniform(seed, index) == draw.uniform(seed, index)


def test_dropped_and_unknown_requests_are_key_errors(team: _kernels.Team) -> None:
    sampler = Sampler(team)
    admit(sampler, 1, params())
    admit(sampler, 3, params(temperature=0, presence_penalty=2.0))
    sampler.drop([1, 2])
    for _ in range(2):
        with pytest.raises(KeyError, match="1"):
            sampler.sample(np.tile(LOGITS, (2, 1)), [3, 1])
    assert sampler.sample(LOGITS[None].copy(), [3]) == ([0], {})  # nothing was sampled before
    assert sampler.sample(np.empty((0, 6), np.float32), []) == ([], {})


def test_arrays_of_another_kind_are_refused(team: _kernels.Team) -> None:
    sampler = Sampler(team)
    admit(sampler, 1, params())
    with pytest.raises(TypeError):
        sampler.sample(LOGITS.astype(np.float64)[None], [1])  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        sampler.sample(np.zeros((1, 12), np.float32)[:, ::2], [1])
    with pytest.raises(ValueError, match="row of logits per request"):
        sampler.sample(np.tile(LOGITS, (2, 1)), [1])
    with pytest.raises(ValueError, match="a bit per token"):
        sampler.sample(LOGITS[None].copy(), [1], {1: np.zeros(2, np.uint32)})
    with pytest.raises(TypeError):
        sampler.sample(LOGITS[None].copy(), [1], {1: np.zeros(1, np.uint64)})


def test_biases_and_penalties_do_not_bring_masked_tokens_back(team: _kernels.Team) -> None:
    p = params(temperature=0, logit_bias={0: 100.0}, repetition_penalty=0.1)
    assert sample_once(team, LOGITS, p, prompt=(0, 1), mask=mask_of([2, 5], 6)) == 2


def test_masks_touch_their_own_request(team: _kernels.Team) -> None:
    sampler = Sampler(team)
    for request in (1, 2):
        admit(sampler, request, params(temperature=0))
    assert sampler.sample(np.tile(LOGITS, (2, 1)), [1, 2], {2: mask_of([3], 6), 9: mask_of([4], 6)}) == ([0, 3], {})
    assert sampler.sample(np.tile(LOGITS, (2, 1)), [1, 2]) == ([0, 0], {})
