"""Sampler: every parameter does what it says, distributions are right, and no request feels another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from orcaserve.core.sampling_params import SamplingParams
from orcaserve.model.reference import draw
from orcaserve.model.reference.sampler import Sampler

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])


def params(**options: Any) -> SamplingParams:
    return SamplingParams(**({"max_tokens": 10_000, "seed": 1} | options))


def admit(sampler: Sampler, request_id: int, prompt: Sequence[int], p: SamplingParams, stop: frozenset[int]) -> None:
    sampler.admit(request_id, prompt, p, stop, p.seed or 0)


def sample_once(logits: Tensor, p: SamplingParams, prompt: tuple[int, ...] = (0,), stop: tuple[int, ...] = ()) -> int:
    sampler = Sampler()
    admit(sampler, 7, prompt, p, frozenset(stop))
    tokens, failures = sampler.sample(logits.clone()[None], [7])
    assert not failures
    return tokens[0]


def frequencies(p: dict[str, Any], logits: Tensor = LOGITS, n: int = 4000) -> list[int]:
    """How often each token comes out of n requests that differ in their seed only."""
    sampler = Sampler()
    for seed in range(n):
        admit(sampler, seed, (0,), params(**p | {"seed": seed}), frozenset())
    tokens, failures = sampler.sample(logits.repeat(n, 1), list(range(n)))
    assert not failures
    return torch.tensor(tokens).bincount(minlength=len(logits)).tolist()


def assert_distribution(counts: list[int], weights: list[float]) -> None:
    """Pearson's chi-square stays below its 99.9 % quantile; tokens of weight 0 never occur."""
    n, total = sum(counts), sum(weights)
    expected = [n * weight / total for weight in weights]
    assert all(count == 0 for count, e in zip(counts, expected, strict=True) if e == 0)
    chi = sum((count - e) ** 2 / e for count, e in zip(counts, expected, strict=True) if e)
    freedom = sum(e > 0 for e in expected) - 1
    quantile = {0: 0.0, 1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52}[freedom]
    assert chi <= quantile, f"chi-square {chi:.1f} of {freedom}: {counts} against {expected}"


EXP = LOGITS.exp().tolist()


def test_the_whole_distribution() -> None:
    assert_distribution(frequencies({}), EXP)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.3, 2.0])
def test_temperature(temperature: float) -> None:
    counts = frequencies({"temperature": temperature})
    assert_distribution(counts, (LOGITS / temperature).exp().tolist())


def test_top_k_keeps_the_best() -> None:
    assert_distribution(frequencies({"top_k": 3}), [*EXP[:3], 0, 0, 0])
    assert_distribution(frequencies({"top_k": 1}, n=50), [1, 0, 0, 0, 0, 0])
    assert_distribution(frequencies({"top_k": 100}), EXP)
    assert_distribution(frequencies({"top_k": -1}), EXP)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    """Shares are .561 .206 .125 .076 .028 .004: two reach .767, three .892."""
    assert_distribution(frequencies({"top_p": 0.76}), [*EXP[:2], 0, 0, 0, 0])
    assert_distribution(frequencies({"top_p": 0.8}), [*EXP[:3], 0, 0, 0])
    assert_distribution(frequencies({"top_p": 0.0}, n=50), [1, 0, 0, 0, 0, 0])


def test_top_p_is_a_share_of_what_top_k_leaves() -> None:
    """Of the best three, the first two have .86."""
    assert_distribution(frequencies({"top_k": 3, "top_p": 0.85}), [*EXP[:2], 0, 0, 0, 0])


def test_top_p_is_a_share_of_what_top_k_leaves_beyond_the_first_look_too() -> None:
    """400 alike of 3,000: the nucleus of .05 is 20 of them (of all 3,000 it would be 150)."""
    tokens = frequencies({"top_k": 400, "top_p": 0.05}, torch.zeros(3000), n=1000)
    assert sum(count > 0 for count in tokens) == 20


def test_min_p_is_a_share_of_the_best() -> None:
    """Relative to the best: 1 .37 .22 .14 .05 .007."""
    assert_distribution(frequencies({"min_p": 0.2}), [*EXP[:3], 0, 0, 0])
    assert_distribution(frequencies({"min_p": 1.0}, n=50), [1, 0, 0, 0, 0, 0])


def test_logit_bias_adds() -> None:
    biased = [math.exp(2.0), math.exp(1.0), math.exp(2.5), *EXP[3:]]
    assert_distribution(frequencies({"logit_bias": {2: 2.0}}), biased)
    assert sample_once(LOGITS, params(temperature=0, logit_bias={4: 100.0})) == 4
    assert sample_once(LOGITS, params(temperature=0, logit_bias={0: -100.0})) == 1


def test_penalties_follow_the_output() -> None:
    """Greedy on three near-equal tokens: each penalty drives the choice on once a token was put out."""
    logits = torch.tensor([1.0, 0.9, 0.8])
    for options, expected in [
        ({"presence_penalty": 0.15}, [0, 1, 0, 0]),  # .85 .9 .8 -> .85 .75 .8, and so on
        ({"frequency_penalty": 0.15}, [0, 1, 0, 2]),  # .85 .9 .8 -> .85 .75 .8 -> .7 .75 .8
        ({"repetition_penalty": 1.2}, [0, 1, 0, 0]),  # .83 .9 .67 -> .83 .75 .67
        ({}, [0, 0, 0, 0]),
    ]:
        sampler = Sampler()
        admit(sampler, 1, (2,), params(temperature=0, **options), frozenset())
        assert [sampler.sample(logits.clone()[None], [1])[0][0] for _ in range(4)] == expected


def test_repetition_penalty_counts_the_prompt_and_presence_does_not() -> None:
    logits = torch.tensor([1.0, 0.9, -0.1, -0.2])
    assert sample_once(logits, params(temperature=0, repetition_penalty=1.5), prompt=(0, 0)) == 1
    assert sample_once(logits, params(temperature=0, presence_penalty=2.0), prompt=(0, 0)) == 0
    # Negative logits are multiplied: the penalty never helps a token.
    negative = torch.tensor([-0.1, -0.12])
    assert sample_once(negative, params(temperature=0, repetition_penalty=2.0), prompt=(0,)) == 1


def test_stop_ids_are_masked_until_min_tokens() -> None:
    sampler = Sampler()
    admit(sampler, 1, (0,), params(temperature=0, min_tokens=2, logit_bias={0: 100.0}), frozenset({0, 99}))
    assert [sampler.sample(LOGITS.clone()[None], [1])[0][0] for _ in range(3)] == [1, 1, 0]


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-38, 1e-7, 1e-5, 9.9e-5, 1e-4, 1e-3])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(3)) * 10
    for seed in range(20):
        assert sample_once(logits, params(temperature=temperature, seed=seed)) == int(logits.argmax())


def test_huge_logits_do_not_overflow() -> None:
    logits = torch.tensor([3e38, 2.9e38, -3e38])
    assert sample_once(logits, params(temperature=1e-3)) == 0
    assert sample_once(logits, params(temperature=2.0, top_p=0.5)) == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_end_their_request_only(bad: float, temperature: float) -> None:
    sampler = Sampler()
    for request in (1, 2, 3):
        admit(sampler, request, (0,), params(temperature=temperature), frozenset())
    logits = LOGITS.repeat(3, 1)
    logits[1, 4] = bad
    tokens, failures = sampler.sample(logits, [1, 2, 3])
    assert failures == {2: "the model's output is not a number"}
    assert tokens[0] == tokens[2] == sample_once(LOGITS, params(temperature=temperature))


@pytest.mark.parametrize("cut", [{}, {"temperature": 0}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}])
def test_no_token_left_ends_the_request_only(cut: dict[str, Any]) -> None:
    sampler = Sampler()
    admit(sampler, 1, (0,), params(min_tokens=1, **cut), frozenset(range(6)))
    admit(sampler, 2, (0,), params(**cut), frozenset())
    tokens, failures = sampler.sample(LOGITS.repeat(2, 1), [1, 2])
    assert failures == {1: "every token is excluded"}
    assert tokens == [0, sample_once(LOGITS, params(**cut))]


def test_ids_outside_the_vocabulary_end_their_request_only() -> None:
    sampler = Sampler()
    admit(sampler, 1, (0,), params(logit_bias={6: 1.0}), frozenset())
    admit(sampler, 2, (0,), params(temperature=0), frozenset())
    tokens, failures = sampler.sample(LOGITS.repeat(2, 1), [1, 2])
    assert failures.keys() == {1}
    assert tokens[1] == 0


def test_the_same_seed_gives_the_same_text_and_another_another() -> None:
    def text(seed: int) -> list[int]:
        sampler = Sampler()
        admit(sampler, 1, (0,), params(seed=seed), frozenset())
        return [sampler.sample(LOGITS.clone()[None], [1])[0][0] for _ in range(40)]

    assert text(5) == text(5)
    assert text(5) != text(6)
    assert text(-(2**63)) != text(2**63 - 1)


def test_a_text_goes_on_alike_when_its_output_comes_back_as_input() -> None:
    """What happens to a request whose K/V had to be built anew."""
    sampler = Sampler()
    admit(sampler, 1, (0, 1), params(seed=9), frozenset())
    text = [0, 1] + [sampler.sample(LOGITS.clone()[None], [1])[0][0] for _ in range(20)]
    admit(sampler, 2, text[:12], params(seed=9), frozenset())
    assert [sampler.sample(LOGITS.clone()[None], [2])[0][0] for _ in range(10)] == text[12:]


def test_dropped_requests_are_forgotten() -> None:
    sampler = Sampler()
    admit(sampler, 1, (0,), params(), frozenset())
    sampler.drop([1, 2])
    with pytest.raises(KeyError):
        sampler.sample(LOGITS.clone()[None], [1])


OPTIONS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.4, 1.0, 2.0]),
        "top_k": st.sampled_from([0, 1, 5, 400, 3000]),
        "top_p": st.sampled_from([0.0, 0.3, 0.9, 0.999, 1.0]),
        "min_p": st.sampled_from([0.0, 0.05, 0.5]),
        "presence_penalty": st.sampled_from([0.0, 1.5]),
        "frequency_penalty": st.sampled_from([0.0, -0.7]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "logit_bias": st.sampled_from([{}, {3: 4.0, 11: -50.0}]),
        "seed": st.integers(0, 2**63 - 1),
        "min_tokens": st.sampled_from([0, 2]),
    }
)


@settings(max_examples=15)
@given(st.lists(OPTIONS, min_size=2, max_size=6), st.integers(0, 1000))
def test_a_request_gets_the_same_tokens_in_any_batch(requests: list[dict[str, Any]], seed: int) -> None:
    """To the token, over four steps, with a vocabulary of odd size that is larger than the first look at candidates."""
    logits = torch.randn(4, len(requests), 2503, generator=torch.Generator().manual_seed(seed)) * 2
    together = Sampler()
    for r, options in enumerate(requests):
        admit(together, r, (1, 2, 3), params(**options), frozenset({4, 5}))
    batch = [together.sample(logits[i].clone(), range(len(requests)))[0] for i in range(4)]
    for r, options in enumerate(requests):
        alone = Sampler()
        admit(alone, r, (1, 2, 3), params(**options), frozenset({4, 5}))
        assert [alone.sample(logits[i, r : r + 1].clone(), [r])[0][0] for i in range(4)] == [t[r] for t in batch]


@settings(max_examples=150)
@given(OPTIONS, st.integers(0, 1000), st.sampled_from([0.1, 1.0, 4.0]))
def test_a_cut_draw_is_the_inverse_of_the_sorted_distribution(
    options: dict[str, Any], seed: int, spread: float
) -> None:
    """Against the definition, with a full sort in float64: also where the best few hundred are not enough."""
    logits = torch.randn(3001, generator=torch.Generator().manual_seed(seed)) * spread
    p = params(**options | {"temperature": options["temperature"] or 1.0})
    share = draw.uniform(seed, 1)
    got = int(draw.draw((logits - logits.max())[None].clone(), [p], [share]))
    weights, order = (logits.double() / p.temperature).softmax(0).sort(descending=True)
    kept = weights.clone()
    if p.top_k > 0:
        kept[p.top_k :] = 0
    kept /= kept.sum()
    if p.top_p < 1:
        kept[kept.cumsum(0) - kept >= max(p.top_p, 1e-9)] = 0
    kept[kept < p.min_p * kept[0]] = 0
    if p.top_k <= 0 and p.top_p == 1 and p.min_p == 0:
        kept = torch.zeros_like(kept).scatter(0, order, kept)
        order = torch.arange(len(order))
    cumulative = kept.cumsum(0) / kept.sum()
    place = int((order == got).nonzero())
    low = float(cumulative[place - 1]) if place else 0.0
    assert kept[place] > 0
    assert low - 1e-5 <= share <= float(cumulative[place]) + 1e-5


def test_uniform_numbers_are_uniform_and_fixed() -> None:
    numbers = [draw.uniform(seed, index) for seed in range(100) for index in range(100)]
    assert all(0 <= number < 1 for number in numbers)
    counts = torch.tensor(numbers).mul(10).long().bincount(minlength=10)
    assert ((counts - 1000.0) ** 2 / 1000).sum() < 27.9  # 99.9 % quantile, 9 degrees of freedom
    assert draw.uniform(0, 0) == pytest.approx(0.6524484863740322, abs=0)


@pytest.mark.parametrize("n_top", [0, 2, 6])
def test_log_probabilities_are_those_of_the_logits_as_they_came(n_top: int) -> None:
    sampler = Sampler()
    admit(sampler, 1, (0,), params(temperature=0, logit_bias={3: 50.0}), frozenset())
    admit(sampler, 2, (0,), params(temperature=0), frozenset())
    expected = torch.log_softmax(LOGITS, 0)
    tokens, failures, told = sampler.sample_with_logprobs(LOGITS.repeat(2, 1), [1, 2], {1: n_top})
    assert (tokens, failures, told.keys()) == ([3, 0], {}, {1})
    assert (told[1].rank, told[1].top_ids) == (4, list(range(n_top)))
    assert [told[1].logprob, *told[1].top_logprobs] == pytest.approx([expected[3].item(), *expected[:n_top].tolist()])


def test_given_tokens_are_scored_and_what_is_no_number_is_not() -> None:
    logits = LOGITS.repeat(3, 1)
    logits[1, 4] = math.nan
    first, second, third = Sampler().score(logits, [5, 0, 1], [0, 1, 20])
    assert second is None and first is not None and third is not None
    expected = torch.log_softmax(LOGITS, 0)
    assert (first.rank, first.logprob) == (6, pytest.approx(expected[5].item()))
    assert third.top_ids == list(range(6))
