"""The offline API, on the default model."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal

import pytest

from orcaserve import LLM, Grammar, SamplingParams
from orcaserve.core import EngineError, EngineStatus, FinishReason, InvalidRequest, IterationReport, Progress, Request

GREEDY = SamplingParams(max_tokens=12, temperature=0)


@pytest.fixture(scope="module")
def llm(default_model: Path) -> Iterator[LLM]:
    with LLM(default_model, max_num_seqs=8, n_slots=4096) as llm:
        yield llm


def test_one_prompt_and_many(llm: LLM) -> None:
    prompts = ["The capital of France is", "1, 2, 3, 4,", "def add(a, b):"]
    alone = [llm.generate(prompt, GREEDY)[0] for prompt in prompts]
    together = llm.generate(prompts, GREEDY)
    assert [r.completions[0].text for r in together] == [r.completions[0].text for r in alone]
    assert "Paris" in alone[0].completions[0].text
    assert alone[1].completions[0].text.startswith(" 5, 6")
    for result, prompt in zip(together, prompts, strict=True):
        assert result.prompt == prompt
        assert result.prompt_token_ids == llm.tokenizer.encode(prompt)
        assert 1 <= len(result.completions[0].token_ids) <= GREEDY.max_tokens


def test_what_was_there_already_is_told_and_changes_nothing(llm: LLM, default_model: Path) -> None:
    prompt = "A conversation that is asked to go on. " * 8
    first, again = llm.generate(prompt, GREEDY)[0], llm.generate([prompt, prompt + "Well,"], GREEDY)
    n = len(first.prompt_token_ids)
    assert first.n_cached < 16 and again[0].n_cached >= (n - 1) // 16 * 16 and again[1].n_cached >= n // 16 * 16
    assert again[0].completions == first.completions
    with LLM(default_model, max_num_seqs=8, n_slots=4096, enable_prefix_caching=False) as plain:
        for one in (plain.generate(prompt, GREEDY), plain.generate([prompt, prompt + "Well,"], GREEDY)):
            assert [each.n_cached for each in one] == [0] * len(one)
        assert [each.completions for each in one] == [each.completions for each in again]


def test_a_cpu_runs_without_torch(tiny_model: Path) -> None:
    """Importing torch would take a second of the start and 200 MB."""
    program = f"""
import pathlib, sys
from orcaserve.config import EngineConfig, KVConfig, ModelConfig
from orcaserve.core import Request, SamplingParams
from orcaserve.engine.host import EngineHost
import queue
import orcaserve.engine.process, orcaserve.llm
reports = queue.SimpleQueue()
config = EngineConfig(ModelConfig(pathlib.Path({str(tiny_model)!r}), "tiny"), KVConfig(n_slots=256))
host = EngineHost.load(config, reports.put)
host.submit([Request(1, (3, 4, 5), SamplingParams(max_tokens=3), frozenset())])
assert reports.get(timeout=30).progress
host.close()
print(sorted(name for name in sys.modules if name.split(".")[0] == "torch"))
maps = pathlib.Path("/proc/self/maps").read_text()
print([part for part in ("libtorch", "libgomp") if part in maps])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split("\n")[:2] == ["[]", "[]"], done.stderr


def test_ids_and_text_are_the_same_prompt(llm: LLM) -> None:
    ids = llm.tokenizer.encode("The sea is")
    by_text, by_ids, by_list = (
        llm.generate("The sea is", GREEDY),
        llm.generate(ids, GREEDY),
        llm.generate([ids], GREEDY),
    )
    assert by_text[0].completions == by_ids[0].completions == by_list[0].completions


def test_params_for_each_prompt(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=n, temperature=0, ignore_eos=True) for n in (1, 5)]
    results = llm.generate(["One", "Two"], params)
    assert [len(r.completions[0].token_ids) for r in results] == [1, 5]
    assert all(r.completions[0].finish_reason == "length" for r in results)
    with pytest.raises(InvalidRequest, match="2 params for 1 prompts"):
        llm.generate("One", params)


def test_choices_differ_and_a_seed_repeats_them(llm: LLM) -> None:
    params = SamplingParams(max_tokens=16, n=3, temperature=1.0, seed=7)
    first, second = (llm.generate("Once upon a time", params)[0].completions for _ in range(2))
    assert first == second
    assert len({choice.text for choice in first}) > 1
    assert [choice.index for choice in first] == [0, 1, 2]


def test_stop_string(llm: LLM) -> None:
    result = llm.generate("1, 2, 3, 4,", SamplingParams(max_tokens=40, temperature=0, stop=("7",)))[0].completions[0]
    assert result.text == " 5, 6, "
    assert result.finish_reason == "stop"


def test_stream_joins_to_the_whole(llm: LLM) -> None:
    whole = llm.generate("The sea is", GREEDY)[0].completions[0].text
    assert "".join(llm.stream("The sea is", GREEDY)) == whole


def test_leaving_a_stream_cancels_it(llm: LLM) -> None:
    long = SamplingParams(max_tokens=4000, temperature=0, ignore_eos=True)
    assert len(list(islice(llm.stream("The sea is", long), 3))) == 3
    # All 4,096 slots were promised to it: this runs only if they came back.
    assert len(list(islice(llm.stream("The sea is", long), 2))) == 2


def test_chat(llm: LLM) -> None:
    messages = [{"role": "user", "content": "What is the capital of Japan?"}]
    answer = llm.chat(messages, SamplingParams(max_tokens=24, temperature=0))
    assert "Tokyo" in answer.text
    assert "".join(llm.stream_chat(messages, SamplingParams(max_tokens=24, temperature=0))) == answer.text


@pytest.mark.parametrize(
    ("prompt", "params", "field"),
    [
        ([49152], GREEDY, "prompt"),
        ([-1], GREEDY, "prompt"),
        ("a", SamplingParams(max_tokens=8192), "max_tokens"),
        ("a", SamplingParams(logit_bias={49152: 1.0}), "logit_bias"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_runs(
    llm: LLM, prompt: str | list[int], params: SamplingParams, field: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        llm.generate(["fine", prompt], [GREEDY, params])
    assert refusal.value.field == field
    assert llm.generate("The capital of France is", GREEDY)[0].completions[0].text


def test_log_probabilities(llm: LLM) -> None:
    """Of output and prompt; a prompt that is only read is told what one is that goes on."""
    params = SamplingParams(max_tokens=4, temperature=0, logprobs=2, prompt_logprobs=1)
    prompts = ["The capital of France is", "1, 2, 3, 4,"]
    for result in llm.generate(prompts, params):
        (completion,) = result.completions
        assert completion.logprobs is not None and result.prompt_logprobs is not None
        assert len(completion.logprobs) == len(completion.token_ids)
        for token, told in zip(completion.token_ids, completion.logprobs, strict=True):
            assert told.rank == 1 and told.top_ids[0] == token and told.top_logprobs[0] == told.logprob <= 0
        assert len(result.prompt_logprobs) == len(result.prompt_token_ids) and result.prompt_logprobs[0] is None
        read = llm.generate(result.prompt_token_ids, SamplingParams(max_tokens=0, prompt_logprobs=1))[0]
        assert read.prompt_logprobs == result.prompt_logprobs
        assert (read.completions[0].token_ids, read.completions[0].finish_reason) == ([], "length")
        # What was generated is as likely where it stands in a prompt.
        longer = llm.generate(
            result.prompt_token_ids + completion.token_ids, SamplingParams(max_tokens=0, prompt_logprobs=2)
        )[0]
        assert longer.prompt_logprobs is not None
        pairs = zip(longer.prompt_logprobs[-len(completion.token_ids) :], completion.logprobs, strict=True)
        assert all(own is not None and own.logprob == pytest.approx(told.logprob, abs=0.05) for own, told in pairs)
    plain = llm.generate(prompts[0], GREEDY)[0]
    assert plain.prompt_logprobs is None and plain.completions[0].logprobs is None


def test_embeddings(llm: LLM) -> None:
    """Of many at once the same to the bit as of each alone, and of texts as of their ids."""
    texts = ["The capital of France is", "1, 2, 3, 4,", "a", "Whales sing. " * 60]
    kinds: tuple[Literal["mean", "last"], ...] = ("mean", "last")
    for pooling in kinds:
        vectors = llm.embed(texts, pooling=pooling)
        assert vectors == [llm.embed(text, pooling=pooling)[0] for text in texts]
        assert vectors == llm.embed([llm.tokenizer.encode(text) for text in texts], pooling=pooling)
        assert [len(vector) for vector in vectors] == [llm.facts.embedding_size] * 4
        assert [math.hypot(*vector) for vector in vectors] == pytest.approx([1] * 4, abs=1e-5)
        raw = llm.embed(texts[0], pooling=pooling, normalize=False)[0]
        short = llm.embed(texts[0], pooling=pooling, dimensions=10)[0]
        assert [x / math.hypot(*raw) for x in raw] == pytest.approx(vectors[0], abs=1e-6)
        assert short == pytest.approx([x / math.hypot(*raw[:10]) for x in raw[:10]], abs=1e-6)
    assert llm.embed(texts) == llm.embed(texts, pooling="last")
    assert llm.embed("a", pooling="last") == llm.embed("a", pooling="mean")
    for wrong in (0, llm.facts.embedding_size + 1):
        with pytest.raises(InvalidRequest, match="dimensions must be"):
            llm.embed("a", dimensions=wrong)
    with pytest.raises(InvalidRequest, match="pooling must be mean or last"):
        llm.embed("a", pooling="cls")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="the context length holds"):
        llm.embed(["a", [5] * 9000])


def test_progress_goes_to_standard_error(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], GREEDY, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "2/2" in err
    llm.generate("a", GREEDY, progress=False)
    assert capfd.readouterr().err == ""


def test_one_call_at_a_time(llm: LLM) -> None:
    stream = llm.stream("The sea is", GREEDY)
    next(stream)
    with pytest.raises(EngineError, match="in use"):
        llm.generate("a", GREEDY)
    stream.close()  # type: ignore[attr-defined]
    assert llm.generate("a", GREEDY)


def test_streams_and_chats_have_one_choice(llm: LLM) -> None:
    two = SamplingParams(n=2)
    for call in (lambda: llm.stream("a", two), lambda: llm.chat([{"role": "user", "content": "a"}], two)):
        with pytest.raises(InvalidRequest, match="n must be 1"):
            call()


def test_a_request_that_fails_leaves_the_others_their_text(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the worker reports a request whose logits are no numbers: the news of one request, not of the engine."""
    alone = llm.generate("1, 2, 3, 4,", GREEDY)[0].completions[0]
    submit = llm._host.submit

    def fail_the_second(requests: list[Request]) -> None:
        submit(requests[:1])
        ended = Progress(requests[1].id, None, FinishReason.ERROR, "no numbers")
        llm._news.put(IterationReport([ended], EngineStatus()))

    monkeypatch.setattr(llm._host, "submit", fail_the_second)
    fine, failed = (result.completions[0] for result in llm.generate(["1, 2, 3, 4,", "a"], GREEDY))
    assert fine == alone
    assert (failed.finish_reason, failed.error, failed.text) == ("error", "no numbers", "")


def test_a_grammar_is_kept_to(llm: LLM) -> None:
    age = {"type": "integer", "minimum": 1, "maximum": 99}
    schema = {"type": "object", "properties": {"age": age}, "required": ["age"], "additionalProperties": False}
    kinds = [Grammar.json_schema(schema), Grammar.regex("[a-z]{2,9}!"), Grammar.choice(["yes", "no"]), None]
    params = [SamplingParams(max_tokens=40, temperature=1, seed=2, grammar=grammar) for grammar in kinds]
    texts = [result.completions[0].text for result in llm.generate(["The answer is "] * 4, params)]
    assert 1 <= json.loads(texts[0])["age"] <= 99
    assert re.fullmatch("[a-z]{2,9}!", texts[1]) and texts[2] in ("yes", "no")
    assert "".join(llm.stream("The answer is ", params[1])) == texts[1]


def test_what_is_no_grammar_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="keyword not is not supported"):
        llm.generate("a", SamplingParams(grammar=Grammar.json_schema({"not": {}})))
    with pytest.raises(InvalidRequest, match="at least one text"):
        Grammar.choice([])
    with pytest.raises(InvalidRequest, match="65536 characters"):
        Grammar.regex("a" * 70_000)
    with pytest.raises(InvalidRequest, match="must be a Grammar"):
        SamplingParams(grammar="[a-z]")  # type: ignore[arg-type]
