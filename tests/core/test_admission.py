from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from orcaserve.core import CannotFit, EngineFacts, Grammar, InvalidRequest, SamplingParams, SourceFacts
from orcaserve.core.admission import check_output, check_request, fan_out


def facts(context_length: int = 100, n_slots: int = 64, window: int | None = None) -> EngineFacts:
    return EngineFacts("m", 10, context_length, n_slots, max_bs=4, n_workers=1, eos_ids=frozenset({9}), window=window)


@pytest.mark.parametrize(
    ("context_length", "n_slots", "limit"), [(100, 64, "the K/V region holds 64"), (64, 100, "the context length")]
)
def test_input_and_output_together_must_fit(context_length: int, n_slots: int, limit: str) -> None:
    """Against the context and against all slots; the field to blame is the one that could be made smaller."""
    model = facts(context_length, n_slots)
    check_request([1] * 60, SamplingParams(max_tokens=4), model)
    with pytest.raises(CannotFit, match=limit) as refusal:
        check_request([1] * 60, SamplingParams(max_tokens=5), model)
    assert refusal.value.field == "max_tokens"
    assert "60 prompt tokens + 5 tokens to generate make 65" in refusal.value.message
    with pytest.raises(CannotFit) as refusal:
        check_request([1] * 64, SamplingParams(max_tokens=1), model)
    assert refusal.value.field == "prompt"


def test_with_windows_a_text_may_be_longer_than_the_region() -> None:
    model = facts(100, 64, window=20)
    check_request([1] * 90, SamplingParams(max_tokens=10), model)
    with pytest.raises(CannotFit, match="the context length holds 100"):
        check_request([1] * 90, SamplingParams(max_tokens=11), model)
    check_request([1] * 64, SamplingParams(max_tokens=0), model)


@pytest.mark.parametrize("input_ids", [[], [10], [-1], [1, 2, 2**40]])
def test_prompt_ids_must_exist(input_ids: list[int]) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_request(input_ids, SamplingParams(), facts())
    assert refusal.value.field == "prompt"


def test_output_of_an_earlier_engine_must_be_possible() -> None:
    check_output([], SamplingParams(max_tokens=1), facts())
    check_output([0, 9], SamplingParams(max_tokens=3), facts())
    check_output([], SamplingParams(max_tokens=0), facts())
    with pytest.raises(InvalidRequest):
        check_output([1], SamplingParams(max_tokens=0), facts())
    for output in ([1, 1, 1], [10], [-1]):
        with pytest.raises(InvalidRequest):
            check_output(output, SamplingParams(max_tokens=3), facts())


def test_ids_in_settings_must_exist() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_request([1], SamplingParams(logit_bias={10: 1.0}), facts())
    assert refusal.value.field == "logit_bias"


def seeds(**settings: Any) -> list[int]:
    return [one.seed for one in fan_out(itertools.count(), [1], SamplingParams(**settings), facts())]


def test_each_choice_is_a_request_of_its_own() -> None:
    ids = itertools.count(5)
    params = SamplingParams(n=3, seed=7, temperature=0.5)
    choices = fan_out(ids, [1, 2], params, facts())
    assert [one.id for one in choices] == [5, 6, 7] and next(ids) == 8
    assert all(one.input_ids == [1, 2] and one.params is params for one in choices)


@pytest.mark.parametrize("seed", [0, 7, -3, 2**63 - 1, -(2**63)])
def test_seeds_of_choices_depend_on_seed_and_index_alone(seed: int) -> None:
    five = seeds(n=5, seed=seed)
    assert five == seeds(n=5, seed=seed) and len(set(five)) == 5
    assert five[:2] == seeds(n=2, seed=seed) and five[0] == seed


def test_without_a_seed_one_is_drawn() -> None:
    drawn = seeds(n=4) + seeds(n=4)
    assert len(set(drawn)) == 8


def test_stop_ids() -> None:
    def stop_ids(**settings: Any) -> frozenset[int]:
        return fan_out(itertools.count(), [1], SamplingParams(**settings), facts())[0].stop_ids

    assert stop_ids() == {9}
    assert stop_ids(stop_token_ids=[3]) == {3, 9}
    assert stop_ids(stop_token_ids=[3], ignore_eos=True) == {3}


def test_the_end_of_a_grammar_ends_a_request_whatever_is_ignored() -> None:
    params = SamplingParams(ignore_eos=True, stop_token_ids=frozenset({3}))
    (free,) = fan_out(itertools.count(), [1], params, facts())
    assert free.stop_ids == {3}
    (bound,) = fan_out(itertools.count(), [1], replace(params, grammar=Grammar.regex("a")), facts())
    assert bound.stop_ids == {3, 9}


def test_without_a_token_that_ends_a_text_there_is_no_grammar() -> None:
    model = replace(facts(), eos_ids=frozenset())
    check_request([1], SamplingParams(), model)
    with pytest.raises(InvalidRequest, match="no token that ends a text"):
        check_request([1], SamplingParams(grammar=Grammar.regex("a")), model)


class TestSides:
    """A model with an encoder: its two sides have bounds, and slots, of their own."""

    facts = replace(facts(context_length=50, n_slots=64), source=SourceFacts(longest=30, start=0, page_size=16))

    @pytest.mark.parametrize(
        ("n_input", "n_output", "field", "words"),
        [
            (31, 1, "prompt", "31 prompt tokens, but the encoder reads 30 at most"),
            (1, 21, "max_tokens", "21 tokens to generate, but the decoder gives 20 at most"),
        ],
    )
    def test_each_has_its_length(self, n_input: int, n_output: int, field: str, words: str) -> None:
        check_request([1] * 30, SamplingParams(max_tokens=20), self.facts)
        with pytest.raises(CannotFit, match=words) as refusal:
            check_request([1] * n_input, SamplingParams(max_tokens=n_output), self.facts)
        assert refusal.value.field == field

    def test_slots_come_in_pages_for_each(self) -> None:
        few = replace(self.facts, n_slots=48)
        check_request([1] * 30, SamplingParams(max_tokens=15), few)
        check_request([1] * 16, SamplingParams(max_tokens=20), few)
        assert (few.most_output(30), few.most_output(16), few.most_output(17)) == (15, 20, 15)
        with pytest.raises(
            CannotFit, match="30 prompt tokens \\+ 16 tokens to generate need 64 K/V slots, in pages of 16"
        ):
            check_request([1] * 30, SamplingParams(max_tokens=16), few)
        with pytest.raises(CannotFit) as refusal:
            check_request([1] * 30, SamplingParams(max_tokens=1), replace(self.facts, n_slots=32))
        assert refusal.value.field == "prompt"

    def test_a_prompt_is_not_scored(self) -> None:
        with pytest.raises(InvalidRequest, match="no log-probabilities of its tokens") as refusal:
            check_request([1], SamplingParams(max_tokens=1, prompt_logprobs=0), self.facts)
        assert refusal.value.field == "prompt_logprobs"
        check_request([1], SamplingParams(max_tokens=1, logprobs=2), self.facts)
