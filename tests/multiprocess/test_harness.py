"""What lm-evaluation-harness' `local-completions` computes through the server is what transformers gives in process.

Its requests and its scoring, written anew: a context and a continuation as one list of ids, `echo` with `logprobs` 1,
and the sum over the continuation's tokens.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from server_process import Serve

from orcaserve.text.tokenizer import Tokenizer

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

BATCH = 8  # prompts of a request
PASSAGES = [
    "The sea is wide and old, and nobody has seen the end of it.",
    "Une baleine chante sous la glace; ça va, dit-elle.",
    "12 whales, 7 gulls: 19 animals in all.",
]


@dataclass(frozen=True)
class Question:
    context: str
    answers: Sequence[str]
    right: int


QUESTIONS = [
    Question("The whale swims in the", [" sea", " sky", " sand", " soup"], 0),
    Question("Two and two are", [" three", " four", " five"], 1),
    Question("A gull is a", [" bird", " fish", " stone of the old kind"], 0),
    Question("Köln liegt am", [" Rhein", " Meer", " Nil"], 0),
    Question("To boil water one needs", [" heat.", " cold.", " a song."], 0),
    Question("", ["Once", "\u6c49", "zz"], 0),
]


@pytest.fixture(scope="module")
def serve(served_model: Path) -> Iterator[Serve]:
    serve = Serve(str(served_model), "--port", "0", "--n-slots", "8192", "-t", "1", "--dtype", "float32")
    yield serve
    assert serve.stop() == 0


@pytest.fixture(scope="module")
def tokenizer(served_model: Path) -> Tokenizer:
    return Tokenizer.from_path(served_model)


Pair = tuple[list[int], list[int]]
Score = tuple[float, bool]  # log-likelihood of a continuation, and whether it is what greedy decoding gives


def through_server(serve: Serve, pairs: Sequence[Pair], max_tokens: int) -> list[Score]:
    """As the harness' `loglikelihood`: with max_tokens 1, the token that was generated is left out."""
    scores: list[Score] = []
    for begin in range(0, len(pairs), BATCH):
        some = pairs[begin : begin + BATCH]
        body = {
            "prompt": [context + continuation for context, continuation in some],
            "temperature": 0, "max_tokens": max_tokens, "logprobs": 1, "seed": 1234, "echo": True,
        }  # fmt: skip
        answer = serve.post("/v1/completions", **body)
        assert answer.status_code == 200, answer.text
        for choice, (context, _) in zip(
            sorted(answer.json()["choices"], key=lambda choice: choice["index"]), some, strict=True
        ):
            told, end = choice["logprobs"], -1 if max_tokens else None
            own = told["token_logprobs"][len(context) : end]
            top = told["top_logprobs"][len(context) : end]
            scores.append((sum(own), all(x == max(best.values()) for x, best in zip(own, top, strict=True))))
    return scores


def in_process(model: Any, pairs: Sequence[Pair]) -> list[Score]:
    scores: list[Score] = []
    with torch.inference_mode():
        for context, continuation in pairs:
            logits = model(torch.tensor([context + continuation])).logits[0].float()
            rows = torch.log_softmax(logits, -1)[len(context) - 1 : -1]
            targets = torch.tensor(continuation)
            own = rows.gather(1, targets[:, None])[:, 0]
            scores.append((own.sum().item(), bool((rows.argmax(1) == targets).all())))
    return scores


@pytest.fixture(scope="module")
def model(served_model: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(served_model, dtype=torch.float32).eval()


def pairs_of(tokenizer: Tokenizer) -> list[Pair]:
    """An empty context is the token that begins a text."""
    return [
        (tokenizer.encode(q.context, False) or [1], tokenizer.encode(answer, False))
        for q in QUESTIONS
        for answer in q.answers
    ]


def accuracies(scores: Sequence[Score]) -> tuple[list[int], list[int], float, float]:
    """The answers that are chosen, by likelihood and by likelihood per byte; and how many of them are right."""
    by_sum, by_byte, at = [], [], 0
    for question in QUESTIONS:
        own = [score for score, _ in scores[at : at + len(question.answers)]]
        at += len(own)
        by_sum.append(own.index(max(own)))
        each = [x / len(answer.encode()) for x, answer in zip(own, question.answers, strict=True)]
        by_byte.append(each.index(max(each)))
    right = [question.right for question in QUESTIONS]
    shares = [sum(a == b for a, b in zip(chosen, right, strict=True)) / len(right) for chosen in (by_sum, by_byte)]
    return by_sum, by_byte, *shares


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_multiple_choice(serve: Serve, tokenizer: Tokenizer, model: Any, max_tokens: int) -> None:
    pairs = pairs_of(tokenizer)
    got, expected = through_server(serve, pairs, max_tokens), in_process(model, pairs)
    assert [score for score, _ in got] == pytest.approx([score for score, _ in expected], abs=1e-4)
    assert [greedy for _, greedy in got] == [greedy for _, greedy in expected]
    assert accuracies(got) == accuracies(expected)


def test_what_greedy_decoding_gives_is_known_as_such(serve: Serve, tokenizer: Tokenizer, model: Any) -> None:
    """As tasks with exact answers are scored."""
    context = tokenizer.encode("The sea", False)
    best = serve.complete(context, max_tokens=6, return_token_ids=True)["choices"][0]["token_ids"]
    other = [*best[:-1], (best[-1] + 1) % 256]
    pairs = [(context, best), (context, other), (context + best[:3], best[3:])]
    got = through_server(serve, pairs, 1)
    assert [greedy for _, greedy in got] == [greedy for _, greedy in in_process(model, pairs)] == [True, False, True]


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_perplexity(serve: Serve, tokenizer: Tokenizer, model: Any, max_tokens: int) -> None:
    """The harness' `loglikelihood_rolling`: each text after the token that begins one; per word and per byte."""
    pairs = [([1], tokenizer.encode(text, False)) for text in PASSAGES]
    sums = [sum(score for score, _ in scores) for scores in
            (through_server(serve, pairs, max_tokens), in_process(model, pairs))]  # fmt: skip
    for n in (sum(len(text.split()) for text in PASSAGES), sum(len(text.encode()) for text in PASSAGES)):
        got, expected = (math.exp(-total / n) for total in sums)
        assert got == pytest.approx(expected, rel=1e-6)
