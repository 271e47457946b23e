"""The native sampler chooses the PyTorch sampler's tokens, and the defined ones where that one leaves ties open."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from orcaserve.core.sampling_params import SamplingParams
from orcaserve.model.reference import draw
from orcaserve.model.reference.sampler import SECOND_CHOICE
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
) -> None:
    sampler.admit(request_id, prompt, p, stop, p.seed or 0)


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


class Definition:
    """What a row means, in float64 with a full sort: the tokens that are left, in the order of the draw, their shares.

    Ties: the lower id first.
    """

    def __init__(self, logits: NDArray[Any], p: SamplingParams) -> None:
        scaled = (logits.astype(np.float64) - float(logits.max())) / p.temperature
        cut = p.top_k > 0 or p.top_p < 1 or p.min_p > 0
        self.order = np.argsort(-scaled, kind="stable") if cut else np.arange(len(logits))
        self.scaled = scaled[self.order]
        weights = np.exp(self.scaled)
        keep = np.ones(len(weights), bool)
        if p.top_k > 0:
            keep[p.top_k :] = False
        before = np.cumsum(weights) - weights
        if p.top_p < 1:
            keep &= before < p.top_p * weights[keep].sum()
        keep &= weights >= p.min_p
        if cut:
            keep[0] = True
        kept = np.where(keep, weights, 0)
        self.high = np.cumsum(kept) / kept.sum()
        self.low = self.high - kept / kept.sum()
        # A limit that is met within rounding may take one token more or less.
        self.slack = 2e-6 + (2 * kept[kept > 0].min() / kept.sum() if cut else 0)

    def pick(self, share: float) -> int:
        return int(self.order[np.searchsorted(self.high, share, side="right")])

    def allows(self, token: int, share: float, nearness: float = 0.0) -> bool:
        """Whether `token` is the pick but for rounding: of the sums, of the limits, and of places in the order.

        nearness: tokens whose logarithms of weight are so near each other may have changed places.
        """
        right = (self.low - self.slack <= share) & (share <= self.high + self.slack)
        place = int((self.order == token).nonzero()[0][0])
        return bool((np.abs(self.scaled[right] - self.scaled[place]) <= nearness).any() if nearness else right[place])


OPTIONS: dict[str, list[Any]] = {
    "temperature": [0.0, 1e-3, 0.3, 0.8, 1.0, 2.0],
    "top_k": [0, 0, 1, 5, 50, 400, 3000, 40_000],
    "top_p": [0.0, 0.3, 0.9, 0.999, 1.0, 1.0],
    "min_p": [0.0, 0.0, 0.05, 0.5, 1e-7, 1e-50, 1.0],
    "presence_penalty": [0.0, 1.5],
    "frequency_penalty": [0.0, -0.7],
    "repetition_penalty": [1.0, 1.3, 0.5],
    "logit_bias": [{}, {3: 4.0, 5: -50.0, 0: 1.0}],
    "min_tokens": [0, 2],
}


def random_params(rng: np.random.Generator) -> SamplingParams:
    chosen = {name: values[rng.integers(len(values))] for name, values in OPTIONS.items()}
    return params(**chosen, seed=int(rng.integers(-(2**63), 2**63)))


def adjusted(
    logits: Floats, p: SamplingParams, text: Sequence[int], output: Sequence[int], stop: frozenset[int]
) -> Floats:
    """One row after penalties, bias and exclusions; float32 as in the samplers."""
    x = logits.copy()
    for token in set(text):
        if p.repetition_penalty != 1:
            penalty = np.float32(p.repetition_penalty)
            x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
    for token in set(output):
        x[token] += np.float32(-p.presence_penalty - p.frequency_penalty * output.count(token))
    for token, bias in p.logit_bias.items():
        x[token] += np.float32(bias)
    if len(output) < p.min_tokens:
        x[list(stop)] = -np.inf
    return x


STOP = frozenset({4, 2})


@dataclass
class Batch:
    """Requests, and what the PyTorch sampler makes of them in a few steps."""

    requests: list[SamplingParams]
    prompts: list[list[int]]
    logits: list[Floats]
    tokens: list[list[int]]
    failures: list[dict[int, str]]


@cache
def reference_batches(vocab: int, n_batches: int) -> list[Batch]:
    rng = np.random.default_rng(vocab)
    batches = []
    for _ in range(n_batches):
        requests = [random_params(rng) for _ in range(5)]
        prompts = [rng.integers(0, vocab, 20).tolist() for _ in requests]
        spreads = rng.choice([0.1, 1.0, 3.0, 10.0], 4)
        logits = [(rng.standard_normal((5, vocab)) * spread).astype(np.float32) for spread in spreads]
        sampler = ReferenceSampler()
        for r, p in enumerate(requests):
            admit(sampler, r, p, prompts[r], STOP)
        results = [sampler.sample(torch.from_numpy(x.copy()), range(5)) for x in logits]
        batches.append(Batch(requests, prompts, logits, [t for t, _ in results], [f for _, f in results]))
    return batches


@pytest.mark.parametrize(("vocab", "n_batches"), [(6, 30), (50, 30), (2503, 50), (49_152, 8)])
def test_random_settings_give_the_pytorch_samplers_tokens(team: _kernels.Team, vocab: int, n_batches: int) -> None:
    """Five requests a batch, four steps each. Where the tokens differ, both are right: see Definition.allows."""
    n_different = 0
    for batch in reference_batches(vocab, n_batches):
        sampler = Sampler(team)
        for r, p in enumerate(batch.requests):
            admit(sampler, r, p, batch.prompts[r], STOP)
        outputs: list[list[int]] = [[] for _ in batch.requests]
        for logits, expected, failures in zip(batch.logits, batch.tokens, batch.failures, strict=True):
            tokens, own_failures = sampler.sample(logits.copy(), range(5))
            assert own_failures == failures
            for r, p in enumerate(batch.requests):
                if tokens[r] != expected[r]:
                    n_different += 1
                    text = batch.prompts[r] + outputs[r]
                    meaning = Definition(adjusted(logits[r], p, text, outputs[r], STOP), p)
                    share = draw.uniform(p.seed or 0, len(text))
                    assert meaning.allows(tokens[r], share, nearness=2e-7), (p, tokens[r], expected[r])
                outputs[r].append(tokens[r])
            if tokens != expected:
                break  # the texts part here
    assert n_different <= n_batches * 20 / 200


DRAWS = st.builds(
    params,
    temperature=st.sampled_from([1e-3, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 40, 5000]),
    top_p=st.sampled_from([0.0, 0.4, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(0, 2**62),
)


@settings(max_examples=150)
@given(p=DRAWS, vocab=st.integers(1, 3000), levels=st.integers(1, 40), seed=st.integers(0, 1000))
def test_ties_go_to_the_lower_id(
    isa: str, team: _kernels.Team, p: SamplingParams, vocab: int, levels: int, seed: int
) -> None:
    logits = (np.random.default_rng(seed).integers(0, levels, vocab) / 8).astype(np.float32)
    share = draw.uniform(p.seed or 0, 1)
    meaning = Definition(logits, p)
    token = sample_once(team, logits, p)
    assert token == meaning.pick(share) or meaning.allows(token, share)
    assert sample_once(team, logits, params(temperature=0)) == int(logits.argmax())


@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e-3, 0.2])
@pytest.mark.parametrize(
    "options", [{"top_p": 0.9}, {"top_k": 20_000}, {"top_k": 30_000, "top_p": 0.5}, {"min_p": 1e-3}, {}]
)
def test_flat_distributions_over_a_large_vocabulary(
    team: _kernels.Team, options: dict[str, Any], spread: float
) -> None:
    """What is nearer to the best logit than 2^-24 to the next such step counts as equal to it."""
    vocab = 50_257
    logits = (np.random.default_rng(5).standard_normal(vocab) * spread).astype(np.float32)
    stepped = -np.floor((logits.max() - logits).astype(np.float64) * 2**24) / 2**24
    for seed in range(3):
        p = params(**options, seed=seed)
        assert Definition(stepped, p).allows(sample_once(team, logits, p), draw.uniform(seed, 1))


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), vocab=st.sampled_from([5, 129, 2503, 9000]))
def test_a_request_gets_the_same_tokens_in_any_batch_on_any_threads(
    isa: str, team: _kernels.Team, seed: int, vocab: int
) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 8))
    requests = [random_params(rng) for _ in range(n)]
    logits = (rng.standard_normal((3, n, vocab)) * 3).astype(np.float32)
    if vocab == 5:
        requests = [params(temperature=p.temperature, top_p=p.top_p, seed=p.seed) for p in requests]
    together = Sampler(team)
    for r, p in enumerate(requests):
        admit(together, r, p, stop=frozenset({4}))
    batch = [together.sample(logits[i].copy(), range(n))[0] for i in range(3)]
    alone = Sampler(_kernels.Team(1))
    for r, p in enumerate(requests):
        admit(alone, r, p, stop=frozenset({4}))
        assert [alone.sample(logits[i, r : r + 1].copy(), [r])[0][0] for i in range(3)] == [t[r] for t in batch]


def frequencies(team: _kernels.Team, logits: Floats, options: dict[str, Any]) -> NDArray[np.int64]:
    """How often each token comes out of 20,000 draws: ten of each of 2,000 requests that differ in their seed only."""
    n = 2000
    sampler = Sampler(team)
    counts = np.zeros(len(logits), np.int64)
    for seed in range(n):
        admit(sampler, seed, params(**options | {"seed": seed}))
    for _ in range(10):
        tokens, failures = sampler.sample(np.tile(logits, (n, 1)), range(n))
        assert not failures
        counts += np.bincount(tokens, minlength=len(logits))
    return counts


def assert_distribution(counts: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
    """Pearson's chi-square stays below its 99.99 % quantile (Wilson and Hilferty's); tokens of weight 0 never occur."""
    expected = counts.sum() * weights / weights.sum()
    assert (counts[expected == 0] == 0).all()
    some = expected > 0
    chi = float(((counts[some] - expected[some]) ** 2 / expected[some]).sum())
    freedom = int(some.sum()) - 1
    third = 2 / (9 * freedom)
    assert chi <= freedom * (1 - third + 3.72 * math.sqrt(third)) ** 3, (chi, counts, expected)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, 6),
        ({"temperature": 0.7}, 6),
        ({"temperature": 2.0}, 6),
        ({"top_k": 3}, 3),
        ({"top_p": 0.76}, 2),  # shares are .561 .206 .125 .076 .028 .004: two reach .767 ...
        ({"top_p": 0.8}, 3),  # ... three .892
        ({"top_k": 3, "top_p": 0.85}, 2),  # of the best three the first two have .86
        ({"min_p": 0.2}, 3),  # relative to the best: 1 .37 .22 .14 .05 .007
        ({"min_p": 0.15, "top_p": 0.95, "top_k": 4, "temperature": 0.9}, 3),  # 1 .33 .19 .11: four reach top_p
    ],
)
def test_20_000_draws_follow_the_distribution(team: _kernels.Team, options: dict[str, Any], kept: int) -> None:
    weights = np.exp(LOGITS.astype(np.float64) / options.get("temperature", 1.0))
    weights[kept:] = 0
    assert_distribution(frequencies(team, LOGITS, options), weights)


def test_draws_over_many_tokens_follow_the_distribution(team: _kernels.Team) -> None:
    """Several blocks and lanes, weights that differ a hundredfold."""
    logits = (np.arange(700) % 47 / 10).astype(np.float32)
    for options in ({}, {"min_p": 1e-6}):
        assert_distribution(frequencies(team, logits, options), np.exp(logits.astype(np.float64)))


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from([6, 33, 500]), st.sampled_from([0.02, 0.5, 0.98]), st.integers(1, 40))
def test_a_mask_goes_before_all_else_for_the_best_token(
    team: _kernels.Team, seed: int, vocab: int, share: float, n_values: int
) -> None:
    """Whether the best token without it is allowed or not; of equals the first."""
    rng = np.random.default_rng(seed)
    logits = rng.integers(-n_values, n_values, (3, vocab)).astype(np.float32)
    allowed = np.flatnonzero(rng.random(vocab) < share)
    masks = {i: mask_of(allowed if len(allowed) else [vocab - 1], vocab) for i in (1, 3)}
    options = {"repetition_penalty": 1.5, "presence_penalty": 1.0, "logit_bias": {0: 9.0, vocab - 1: -3.0}}
    native, reference = Sampler(team), ReferenceSampler()
    for sampler in (native, reference):
        for i in (1, 2, 3):
            own = options if i != 1 else {}
            p = params(temperature=0, min_tokens=2, **own)
            admit(sampler, i, p, prompt=(1, 2), stop=frozenset({3}))
    for _ in range(3):
        expected = reference.sample(torch.from_numpy(logits.copy()), [1, 2, 3], masks)
        assert native.sample(logits.copy(), [1, 2, 3], masks) == expected


@settings(max_examples=60)
@given(
    p=DRAWS,
    vocab=st.sampled_from([6, 31, 32, 33, 1000, 4096, 5001]),
    seed=st.integers(0, 1000),
    share=st.sampled_from([0.02, 0.5, 0.99]),
)
def test_a_mask_leaves_the_allowed_tokens_as_if_there_were_no_others(
    isa: str, team: _kernels.Team, p: SamplingParams, vocab: int, seed: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal(vocab) * 3).astype(np.float32)
    allowed = np.unique(np.append(np.flatnonzero(rng.random(vocab) < share), rng.integers(vocab)))
    mask = mask_of(allowed, vocab)
    if vocab % 32:
        mask[-1] |= np.uint32(1) << np.uint32(31)  # bits beyond the vocabulary mean nothing
    token = sample_once(team, logits, p, mask=mask)
    assert token in allowed
    masked = np.where(np.isin(np.arange(vocab), allowed), logits, -np.inf)
    assert Definition(masked, p).allows(token, draw.uniform(p.seed or 0, 1))
    greedy = sample_once(team, logits, params(temperature=0), mask=mask)
    assert greedy == int(masked.argmax())


def test_a_token_that_is_chosen_again_is_drawn_anew(team: _kernels.Team) -> None:
    """By another number, which is the PyTorch sampler's too; the tokens after it are those of before."""
    texts = []
    ids = list(range(50))
    for sampler, numbers in ((Sampler(team), LOGITS), (ReferenceSampler(), torch.from_numpy(LOGITS))):
        for i in ids:
            admit(sampler, i, params(seed=i))
        rows: Any = np.repeat(numbers[None], 50, 0) if isinstance(sampler, Sampler) else numbers.repeat(50, 1)
        first = sampler.sample(rows, ids)[0]
        again = sampler.choose_again(rows, ids, ids, {}, {})[0]
        texts.append([first, again, sampler.sample(rows, ids)[0]])
        assert first != again
    assert texts[0] == texts[1]
    plain = Sampler(team)
    for i in ids:
        admit(plain, i, params(seed=i))
    assert plain.sample(np.repeat(LOGITS[None], 50, 0), ids)[0] == texts[0][0]
    assert plain.sample(np.repeat(LOGITS[None], 50, 0), ids)[0] == texts[0][2]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 1000),
    vocab=st.sampled_from([6, 33, 700, 5001]),
    n_allowed=st.sampled_from([1, 3, 20, 600, 3000]),
    temperature=st.sampled_from([0, 0.7, 1.5]),
    n_top=st.sampled_from([None, 2]),
)
def test_what_is_chosen_again_is_allowed_and_drawn_by_the_second_number(
    team: _kernels.Team, seed: int, vocab: int, n_allowed: int, temperature: float, n_top: int | None
) -> None:
    """Whether few tokens are allowed or many, of some rows in any order; log-probabilities are of all tokens."""
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((5, vocab)) * 3).astype(np.float32)
    sampler = Sampler(team)
    rows = [3, 0, 4]
    allowed = {row: np.unique(rng.integers(vocab, size=n_allowed)) for row in rows}
    masks = {row: mask_of(ids, vocab) for row, ids in allowed.items()}
    if vocab % 32:
        masks[3][-1] |= np.uint32(1) << np.uint32(31)  # bits beyond the vocabulary mean nothing
    p = params(temperature=temperature, seed=seed)
    for i in range(5):
        admit(sampler, i, p)
    wanted = {} if n_top is None else {0: n_top}
    sampler.sample_with_logprobs(logits, range(5), wanted)
    tokens, failures, told = sampler.choose_again(logits.copy(), rows, rows, wanted, masks)
    assert not failures and set(told) == set(wanted)
    for row, token in zip(rows, tokens, strict=True):
        assert token in allowed[row]
        masked = np.where(np.isin(np.arange(vocab), allowed[row]), logits[row], -np.inf)
        if temperature == 0:
            assert token == int(masked.argmax())
        else:
            assert Definition(masked, p).allows(token, draw.uniform(seed ^ SECOND_CHOICE, 1))
    if n_top is not None:
        expected = torch.log_softmax(torch.from_numpy(logits[0]), 0)[tokens[1]].item()
        assert told[0].logprob == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("option", [{"repetition_penalty": 1.2}, {"presence_penalty": 0.5}, {"frequency_penalty": 0.5}])
def test_what_a_penalty_has_counted_cannot_be_taken_back(team: _kernels.Team, option: dict[str, float]) -> None:
    for sampler in (Sampler(team), ReferenceSampler()):
        admit(sampler, 1, params(**option))
        with pytest.raises(ValueError, match="no token can be taken back of request 1"):
            rows: Any = LOGITS[None].copy()
            sampler.choose_again(rows if isinstance(sampler, Sampler) else torch.from_numpy(rows), [1], [0], {}, {})
    with pytest.raises(ValueError, match="request 2"):
        Sampler(team).choose_again(LOGITS[None].copy(), [2], [0], {}, {})


def test_rows_that_are_not_there_are_refused(team: _kernels.Team) -> None:
    sampler = Sampler(team)
    admit(sampler, 1, params())
    for rows in ([1], [-1], [0, 0]):
        with pytest.raises(ValueError, match="row of logits"):
            sampler.choose_again(LOGITS[None].copy(), [1], rows, {}, {})
