"""Log-probabilities of a worker against transformers' log-softmax, on both kinds of device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orcaserve.config import EngineConfig, KVConfig, ModelConfig, SchedulerConfig
from orcaserve.core import Batch, BatchEntry, IterationResult, Phase, Scoring, TokenLogprobs
from orcaserve.core import SamplingParams as Params
from orcaserve.worker import scoring
from orcaserve.worker.worker import Worker

torch = pytest.importorskip("torch")

TOLERANCE = 1e-4
PROMPT = [3, 4, 5, 9, 3, 8, 200, 17, 41, 255, 0, 90, 3]


@pytest.fixture(scope="module")
def oracle(tiny_model: Path) -> Any:
    """Log-probabilities after every token of a text, [tokens, vocabulary], by transformers in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()

    def logprobs(ids: Sequence[int]) -> Any:
        with torch.inference_mode():
            return torch.log_softmax(model(torch.tensor([list(ids)])).logits[0].float(), -1).numpy()

    return logprobs


class Rig:
    def __init__(self, model: Path, device: str) -> None:
        config = ModelConfig(model, "tiny", device=device, threads=1)
        self.worker = Worker.load(EngineConfig(config, KVConfig(n_slots=1024), SchedulerConfig(8)))
        self._iterations = count(1)

    def run(self, *entries: BatchEntry, drops: Sequence[int] = ()) -> IterationResult:
        return self.worker.run(Batch(next(self._iterations), entries, tuple(drops)))


@pytest.fixture(params=["cpu", "reference"])
def rig(request: pytest.FixtureRequest, tiny_model: Path) -> Rig:
    return Rig(tiny_model, request.param)


def first(id: int, prompt: Sequence[int], params: Params, n_output: int = 0) -> BatchEntry:
    scored = Scoring(params.prompt_logprobs) if params.prompt_logprobs is not None and not n_output else None
    return BatchEntry(id, Phase.INITIATION, prompt, 0, params, n_output=n_output, scoring=scored)


def later(id: int, token: int, position: int) -> BatchEntry:
    return BatchEntry(id, Phase.INCREMENT, [token], position)


def check(told: TokenLogprobs, row: Any, token: int, n_top: int) -> None:
    assert told.logprob == pytest.approx(row[token], abs=TOLERANCE)
    best = np.sort(row)[::-1][:n_top]
    assert told.top_logprobs == pytest.approx(best, abs=TOLERANCE)
    assert [row[i] for i in told.top_ids] == pytest.approx(best, abs=TOLERANCE)
    assert len(set(told.top_ids)) == n_top
    assert abs(told.rank - 1 - (row > row[token]).sum()) <= (np.abs(row - row[token]) < TOLERANCE).sum() - 1


def check_prompt(told: Sequence[TokenLogprobs], rows: Any, prompt: Sequence[int], n_top: int) -> None:
    assert len(told) == len(prompt) - 1
    for own, row, token in zip(told, rows, prompt[1:], strict=False):
        check(own, row, token, n_top)


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.2, "repetition_penalty": 1.5, "top_k": 1}])
def test_prompt_and_output(rig: Rig, oracle: Any, options: dict[str, float]) -> None:
    """Of the model's own distribution, whatever is done to it for the choice; beside one that asks for nothing."""
    params = Params(max_tokens=100, logprobs=3, prompt_logprobs=5, logit_bias={7: -100.0}, **options)
    plain = Params(max_tokens=100, temperature=0)
    result = rig.run(first(1, [9, 9], plain), first(2, PROMPT, params))
    assert result.logprobs.keys() == {2}
    text, other = [*PROMPT, result.tokens[1]], [9, 9, result.tokens[0]]
    told = [result.logprobs[2].token]
    prompt = result.logprobs[2].prompt
    for _ in range(5):
        result = rig.run(later(1, other[-1], len(other) - 1), later(2, text[-1], len(text) - 1))
        assert result.logprobs.keys() == {2} and not result.logprobs[2].prompt
        other.append(result.tokens[0])
        text.append(result.tokens[1])
        told.append(result.logprobs[2].token)
    rows = oracle(text)
    check_prompt(prompt, rows, PROMPT, 5)
    for i, own in enumerate(told, len(PROMPT)):
        assert own is not None
        check(own, rows[i - 1], text[i], 3)


def test_many_prompts_some_rows_at_a_time(rig: Rig, oracle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [PROMPT, [7] * 40, [5], list(range(100, 150)), [1, 2]]
    params = [Params(max_tokens=1, prompt_logprobs=n) for n in (0, 20, 1, 2, 0)]
    entries = [first(i, prompt, p) for i, (prompt, p) in enumerate(zip(prompts, params, strict=True))]
    whole = rig.run(*entries)
    monkeypatch.setattr(scoring, "MOST_LOGITS", 256 * 3)
    cut = rig.run(*entries, drops=range(5))
    assert cut.tokens == whole.tokens
    for i, prompt in enumerate(prompts):
        told, again = whole.logprobs[i], cut.logprobs[i]
        assert told.token is None
        check_prompt(told.prompt, oracle(prompt), prompt, params[i].prompt_logprobs or 0)
        assert [each.logprob for each in again.prompt] == pytest.approx(
            [each.logprob for each in told.prompt], abs=1e-5
        )
        assert [each.rank for each in again.prompt] == [each.rank for each in told.prompt]


@pytest.mark.parametrize("sizes", [(4, 9), (1, 1, 11), (12, 1), (5, 5, 3)])
def test_a_prompt_in_pieces(rig: Rig, oracle: Any, sizes: Sequence[int]) -> None:
    params, at, told = Params(max_tokens=4, prompt_logprobs=1, logprobs=1, temperature=0), 0, []
    other = [2]
    for size in sizes:
        end = at + size
        follower = PROMPT[end] if end < len(PROMPT) else None
        settings = () if follower is not None else (params, frozenset[int](), 0, 0)
        piece = BatchEntry(
            1,
            Phase.INITIATION,
            PROMPT[at:end],
            at,
            *settings,
            n_to_come=len(PROMPT) - end,
            scoring=Scoring(1, follower),
        )
        beside = later(2, other[-1], len(other) - 1) if at else first(2, other, Params(max_tokens=9, temperature=0))
        result = rig.run(piece, beside)
        assert result.failures == {}
        other.append(result.tokens[1])
        told += result.logprobs[1].prompt
        assert (result.logprobs[1].token is None) == (follower is not None)
        at = end
    rows = oracle([*PROMPT, result.tokens[0]])
    check_prompt(told, rows, PROMPT, 1)
    last = result.logprobs[1].token
    assert last is not None
    check(last, rows[-2], result.tokens[0], 1)


def test_one_that_goes_on_is_told_of_its_new_tokens_only(rig: Rig, oracle: Any) -> None:
    params = Params(max_tokens=9, logprobs=2, prompt_logprobs=2, temperature=0)
    result = rig.run(first(1, PROMPT, params, n_output=4))
    assert not result.logprobs[1].prompt
    token = result.logprobs[1].token
    assert token is not None
    check(token, oracle([*PROMPT, result.tokens[0]])[-2], result.tokens[0], 2)


def test_who_fails_is_told_nothing_and_the_others_all(rig: Rig, oracle: Any) -> None:
    params = Params(max_tokens=9, logprobs=0, prompt_logprobs=0, temperature=0)
    outside = BatchEntry(3, Phase.INITIATION, [1, 2], 0, n_to_come=1, scoring=Scoring(0, 256))
    bias = first(4, [1, 2, 3], Params(max_tokens=9, prompt_logprobs=0, logprobs=0, logit_bias={256: 1.0}))
    result = rig.run(first(1, [999, 1], params), first(2, PROMPT, params), outside, bias)
    assert result.failures.keys() == {1, 3, 4}
    assert result.logprobs.keys() == {2}
    check_prompt(result.logprobs[2].prompt, oracle(PROMPT), PROMPT, 0)


def test_logits_that_are_no_numbers_end_their_request_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second row of the second request's prompt has a NaN."""
    sampler: Any = rig.worker._backend.sampler
    score = sampler.score

    def broken(logits: Any, tokens: Sequence[int], n_top: Sequence[int]) -> Any:
        logits[3, 5] = float("nan")
        return score(logits, tokens, n_top)

    monkeypatch.setattr(sampler, "score", broken)
    params = Params(max_tokens=9, logprobs=0, prompt_logprobs=0, temperature=0)
    result = rig.run(first(1, [1, 2, 3], params), first(2, [4, 5, 6], params), first(3, [7, 8, 9], params))
    assert result.failures == {2: "the model's output is not a number"}
    assert result.logprobs.keys() == {1, 3}
    assert [len(result.logprobs[i].prompt) for i in (1, 3)] == [2, 2]


def test_a_dropped_request_is_forgotten(rig: Rig) -> None:
    params = Params(max_tokens=9, logprobs=2, temperature=0)
    rig.run(first(1, [1, 2], params))
    result = rig.run(first(1, [1, 2], Params(max_tokens=9, temperature=0)), drops=[1])
    assert result.logprobs == {}


def test_the_head_alone_gives_the_bits_of_a_whole_run(tiny_model: Path, outlier_model: Path) -> None:
    """What a chosen token is told is what it would be told in a prompt, to the bit."""
    for path, form in ((tiny_model, "none"), (outlier_model, "int8"), (outlier_model, "int4")):
        config = ModelConfig(path, "tiny", threads=2, quantization=form)
        worker = Worker.load(EngineConfig(config, KVConfig(n_slots=1024), SchedulerConfig(8)))
        params = Params(max_tokens=9, logprobs=4, prompt_logprobs=4, temperature=0)
        prompt = [token % 251 for token in PROMPT]
        result = worker.run(Batch(1, (first(1, prompt, params),)))
        longer = worker.run(Batch(2, (first(2, [*prompt, result.tokens[0]], params),)))
        assert longer.logprobs[2].prompt[-1] == result.logprobs[1].token
