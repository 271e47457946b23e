"""Requests with a grammar under both samplers, over logits that know nothing: every text is one of its grammar's."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLParserLimits
from numpy.typing import NDArray

from orcaserve.core import CheckpointError, Grammar, SamplingParams
from orcaserve.model.reference.sampler import Sampler as ReferenceSampler
from orcaserve.native import _kernels
from orcaserve.native.sampler import Sampler as NativeSampler
from orcaserve.text import compiler
from orcaserve.text.tokenizer import Tokenizer
from orcaserve.text.vocabulary import Vocabulary
from orcaserve.worker import matchers
from orcaserve.worker.grammars import ConstrainedSampler

sys.path.insert(0, str(Path(__file__).parents[1] / "text"))
from schemas import PERSON, RANDOM
from walks import check

EOS = (0, 2)
STOPS = frozenset(EOS)
LETTERS = Grammar.regex("[a-z]*")


@pytest.fixture(scope="session")
def vocabulary(byte_level: Tokenizer) -> Vocabulary:
    return byte_level.vocabulary(byte_level.vocab_size + 3, STOPS)


class Rig:
    """A sampler, and requests that get logits of their own: drawn from a seed, and closing what is open."""

    def __init__(self, kind: str, vocabulary: Vocabulary, prepares: bool = True) -> None:
        self.vocabulary, self._prepares = vocabulary, prepares
        self.native = kind == "native"
        inner: Any = NativeSampler(_kernels.Team(1)) if self.native else ReferenceSampler()
        self.sampler = ConstrainedSampler[Any](inner, lambda: vocabulary)
        closing = [i for i, text in enumerate(vocabulary.texts) if text[:1] in (b'"', b"}", b"]", b",")]
        self._bias = np.zeros(len(vocabulary.texts), np.float32)
        self._bias[[*closing, *EOS]] = 3.0

    def step(self, ids: Sequence[int], n: int) -> tuple[list[int], dict[int, str]]:
        """The n-th token of each of these."""
        logits = np.stack([self._bias + np.random.default_rng((i, n)).standard_normal(len(self._bias)) for i in ids])
        logits = logits.astype(np.float32)
        self.sampler.begin(ids)
        outcome = self.sampler.sample(logits if self.native else torch.from_numpy(logits), ids)
        if self._prepares:
            self.sampler.prepare()
        return outcome

    def run(self, ids: Sequence[int], most: int = 400, first: int = 0) -> dict[int, list[int]]:
        """Their tokens, each until it ends."""
        outputs: dict[int, list[int]] = {i: [] for i in ids}
        live = list(ids)
        for n in range(first, first + most):
            tokens, failures = self.step(live, n)
            assert not failures, failures
            for i, token in zip(list(live), tokens, strict=True):
                outputs[i].append(token)
                if token in STOPS:
                    live.remove(i)
            if not live:
                break
        return outputs

    def text(self, tokens: Sequence[int]) -> str:
        return b"".join(self.vocabulary.texts[i] for i in tokens if i not in STOPS).decode()

    def admit(self, i: int, grammar: Grammar | None, output: Sequence[int] = (), **params: Any) -> None:
        settings = SamplingParams(**{"max_tokens": 10_000, **params, "grammar": grammar})
        self.sampler.admit(i, [5, 6], settings, STOPS | settings.stop_token_ids, 100 + i, output)


@pytest.fixture(params=["native", "reference"])
def new_rig(request: pytest.FixtureRequest, vocabulary: Vocabulary) -> Callable[[], Rig]:
    return lambda: Rig(request.param, vocabulary)


@pytest.fixture
def rig(new_rig: Callable[[], Rig]) -> Rig:
    return new_rig()


@pytest.mark.parametrize("temperature", [0, 1, 2])
def test_every_text_validates_at_any_temperature(temperature: float, rig: Rig) -> None:
    ids = range(12)
    for i in ids:
        rig.admit(i, Grammar.json_schema(PERSON), temperature=temperature)
    outputs = rig.run(ids)
    ended = [tokens for tokens in outputs.values() if tokens[-1] in STOPS]
    assert len(ended) >= 10
    for tokens in ended:
        check(rig.text(tokens), PERSON)


@given(RANDOM, st.sampled_from([0, 0.7, 1, 2]), st.sampled_from(["native", "reference"]))
@settings(max_examples=40)
def test_random_schemas(vocabulary: Vocabulary, schema: Any, temperature: float, kind: str) -> None:
    rig = Rig(kind, vocabulary)
    rig.admit(1, Grammar.json_schema(schema), temperature=temperature)
    rig.admit(2, Grammar.json_schema(schema), temperature=temperature, top_p=0.9, repetition_penalty=1.3)
    for tokens in rig.run([1, 2], 200).values():
        if tokens[-1] in STOPS:
            check(rig.text(tokens), schema)


def test_constrained_and_free_requests_side_by_side(new_rig: Callable[[], Rig]) -> None:
    """Neither feels the other."""
    together, alone, free = new_rig(), new_rig(), new_rig()
    for rig in (together, alone):
        rig.admit(1, Grammar.json_schema(PERSON))
    for rig in (together, free):
        rig.admit(2, None)
    both = together.run([1, 2], 60)
    assert both == {**alone.run([1], 60), **free.run([2], 60)}


@given(st.lists(st.tuples(RANDOM, st.sampled_from([0, 0.7, 1.5])), min_size=1, max_size=4), st.integers(0, 99))
@settings(max_examples=10)
def test_what_is_prepared_changes_no_token(vocabulary: Vocabulary, wanted: list[tuple[Any, float]], seed: int) -> None:
    """Nor whether masks come one after the other or on many threads, whichever sampler it is."""
    outputs = []
    for kind, prepares, alone in (
        ("native", True, 60.0),
        ("native", True, 0.0),
        ("native", False, 60.0),
        ("reference", True, 60.0),
    ):
        rig = Rig(kind, vocabulary, prepares)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(matchers, "MOST_ALONE", alone)
            for i, (schema, temperature) in enumerate(wanted):
                rig.admit(i, Grammar.json_schema(schema), temperature=temperature, seed=seed)
            outputs.append(rig.run(range(len(wanted)), 40))
    assert all(output == outputs[0] for output in outputs)


@given(st.lists(RANDOM, min_size=1, max_size=3), st.sampled_from(["native", "reference"]))
@settings(max_examples=15)
def test_a_token_that_is_tried_first_is_the_best_of_the_allowed(
    vocabulary: Vocabulary, wanted: list[Any], kind: str
) -> None:
    outputs = []
    for tries in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not tries:
                patch.setattr(matchers.Followed, "__post_init__", lambda one: setattr(one, "tries", False))
            rig = Rig(kind, vocabulary)
            for i, schema in enumerate(wanted):
                rig.admit(i, Grammar.json_schema(schema), temperature=0)
            outputs.append(rig.run(range(len(wanted)), 40))
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("grammar", ["[b-e]", "[b-e]?"])
def test_draws_are_shared_as_their_weights_are(
    grammar: str, new_rig: Callable[[], Rig], vocabulary: Vocabulary
) -> None:
    """Whether the first draw was allowed or another one was made. Seeds are fixed, and so is the outcome."""
    rig, n = new_rig(), 3000
    row = np.full(len(vocabulary.texts), -9.0, np.float32)
    row[[vocabulary.texts.index(letter) for letter in (b"a", b"b", b"c", b"d", b"e")]] = [1.5, 1.0, 0.5, 0.0, -1.0]
    row[list(EOS)] = [0.2, 0.1]
    for i in range(n):
        rig.admit(i, Grammar.regex(grammar), temperature=1)
    logits = np.repeat(row[None], n, 0)
    rig.sampler.begin(range(n))
    tokens, failures = rig.sampler.sample(logits if rig.native else torch.from_numpy(logits), range(n))
    assert not failures
    allowed = [vocabulary.texts.index(letter) for letter in (b"b", b"c", b"d", b"e")]
    allowed += list(EOS) if grammar.endswith("?") else []
    shares = np.exp(row[allowed])
    shares /= shares.sum()
    counts = np.array([tokens.count(token) for token in allowed])
    assert counts.sum() == n
    assert (abs(counts - n * shares) < 4 * np.sqrt(n * shares * (1 - shares))).all()


def test_log_probabilities_of_a_token_that_was_chosen_again(rig: Rig, vocabulary: Vocabulary) -> None:
    """They are of the token that is put out, among all."""
    rig.admit(1, LETTERS, temperature=0)
    logits = np.linspace(0, 1, len(vocabulary.texts), dtype=np.float32)[None]
    logits[0, vocabulary.texts.index(b"Q")] = 3.0
    rig.sampler.begin([1])
    given = logits.copy() if rig.native else torch.from_numpy(logits.copy())
    tokens, failures, told = rig.sampler.sample_with_logprobs(given, [1], {1: 1})
    assert not failures and vocabulary.texts[tokens[0]].isalpha() and vocabulary.texts[tokens[0]] != b"Q"
    expected = torch.log_softmax(torch.from_numpy(logits[0]), 0)
    assert told[1].logprob == pytest.approx(expected[tokens[0]].item(), abs=1e-5)
    assert told[1].top_ids[0] == vocabulary.texts.index(b"Q") and told[1].rank > 1


def test_output_of_before_is_entered_again(new_rig: Callable[[], Rig]) -> None:
    whole = new_rig()
    whole.admit(3, Grammar.json_schema(PERSON))
    tokens = whole.run([3])[3]
    for cut in (1, 2, len(tokens) // 2, len(tokens) - 1):
        rig = new_rig()
        rig.admit(3, Grammar.json_schema(PERSON), tokens[:cut])
        assert rig.run([3], len(tokens) - cut, first=cut)[3] == tokens[cut:]


def test_a_request_that_is_admitted_anew_begins_anew(rig: Rig) -> None:
    """Preempted ones are; and ids of tests are used again."""
    rig.admit(1, Grammar.regex("aa"))
    rig.run([1], 1)
    rig.admit(1, Grammar.regex("b"))
    assert rig.text(rig.run([1])[1]) == "b"
    rig.sampler.drop([1, 77])
    rig.admit(1, None)
    assert len(rig.run([1], 3)[1]) >= 1


def test_the_end_of_a_grammar_ends_the_text(rig: Rig) -> None:
    """Again and again for who is computed on, as some policies do."""
    rig.admit(1, Grammar.regex("abc"), temperature=2)
    assert rig.text(rig.run([1])[1]) == "abc"
    for n in range(3):
        tokens, failures = rig.step([1], 50 + n)
        assert tokens[0] in STOPS and not failures


def test_all_ids_that_end_a_text_may_end_it(rig: Rig) -> None:
    ends = set()
    for i in range(40):
        rig.admit(i, Grammar.regex("x"), temperature=2)
        ends.add(rig.run([i])[i][-1])
    assert ends == STOPS


def test_min_tokens_holds_as_long_as_there_is_a_way_on(rig: Rig) -> None:
    rig.admit(1, LETTERS, min_tokens=12, temperature=2)
    rig.admit(2, Grammar.regex("[a-z]{0,3}"), min_tokens=12, temperature=2)
    outputs = rig.run([1, 2])
    assert len(outputs[1]) >= 13
    assert len(outputs[2]) <= 4 and outputs[2][-1] in STOPS and len(rig.text(outputs[2])) == 3
    assert re.fullmatch("[a-z]+", rig.text(outputs[1]))


def test_ignore_eos_goes_on_as_long_as_there_is_a_way(rig: Rig) -> None:
    rig.admit(1, LETTERS, ignore_eos=True)
    rig.admit(2, Grammar.regex("[a-z]{0,30}"), ignore_eos=True)
    outputs = rig.run([1, 2], 50)
    assert len(outputs[1]) == 50 and not STOPS & set(outputs[1])
    assert len(rig.text(outputs[2])) == 30 and outputs[2][-1] in STOPS


def test_a_bias_chooses_among_what_is_allowed(rig: Rig) -> None:
    yes, no = (rig.vocabulary.texts.index(letter) for letter in (b"y", b"n"))
    rig.admit(1, Grammar.regex("y|n"), logit_bias={no: 50.0, yes: -50.0, 7: 100.0})
    rig.admit(2, Grammar.regex("y"), logit_bias={yes: -100.0, no: 100.0})
    outputs = rig.run([1, 2])
    assert rig.text(outputs[1]) == "n" and rig.text(outputs[2]) == "y"


def test_what_is_no_grammar_fails_its_request_alone(rig: Rig) -> None:
    rig.admit(1, Grammar.regex("a(?=b)"))
    rig.admit(2, Grammar.regex("ab"))
    rig.admit(3, None)
    for n in range(2):
        _, failures = rig.step([1, 2, 3], n)
        assert list(failures) == [1] and "not valid" in failures[1]
    rig.sampler.drop([1])
    assert rig.step([2, 3], 2)[1] == {}


def test_a_grammar_that_becomes_too_complex_fails_its_request_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found out on the way: states are made as they are needed."""
    monkeypatch.setattr(compiler, "LIMITS", LLParserLimits(max_lexer_states=500))
    rig.admit(1, Grammar.regex("(.*a.{200}|.*b.{190}|.*c.{180}).*"), temperature=2)
    rig.admit(2, LETTERS, ignore_eos=True, temperature=2)
    failed = False
    for n in range(400):
        _, failures = rig.step([1, 2] if not failed else [2], n)
        assert 2 not in failures
        failed = failed or failures == {1: compiler.TOO_COMPLEX}
    assert failed


def test_a_model_without_a_tokenizer(vocabulary: Vocabulary) -> None:
    def read() -> Vocabulary:
        raise CheckpointError("no tokenizer.json")

    for broken in (read, lambda: replace(vocabulary, eos_ids=frozenset())):
        rig = Rig("native", vocabulary)
        rig.sampler = ConstrainedSampler[Any](NativeSampler(_kernels.Team(1)), broken)
        rig.admit(1, LETTERS)
        rig.admit(2, None)
        _, failures = rig.step([1, 2], 0)
        assert list(failures) == [1] and "cannot follow grammars" in failures[1]


def test_masks_of_the_reference_sampler() -> None:
    """Bit i % 32 of word i // 32."""
    sampler = ReferenceSampler()
    mask: NDArray[np.uint32] = np.zeros(2, np.uint32)
    mask[1] = 1 << 5
    for i in range(3):
        sampler.admit(i, [1], SamplingParams(temperature=i), frozenset(), 0)
    tokens, failures = sampler.sample(torch.zeros(3, 40), [0, 1, 2], {0: mask, 1: mask, 2: np.zeros(2, np.uint32)})
    assert tokens[:2] == [37, 37] and failures == {2: "every token is excluded"}


def test_many_grammars_are_not_all_kept(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matchers, "MAX_COMPILED", 3)
    rig = Rig("native", vocabulary)
    for i in range(8):
        rig.admit(i, Grammar.json_schema({"const": i}))
    outputs = rig.run(range(8))
    assert [json.loads(rig.text(outputs[i])) for i in range(8)] == list(range(8))
    assert len(rig.sampler._matchers._compiled) == 3
