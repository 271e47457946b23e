"""Encoder-decoder models through the offline API: the engine that serves, in this process, against transformers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from orcaserve import LLM, Grammar, SamplingParams
from orcaserve.config import EngineConfig, KVConfig, ModelConfig, ParallelConfig, ScheduleLogConfig, SchedulerConfig
from orcaserve.core import CannotFit, ConfigError, GrammarKind, InvalidRequest, UnsupportedModel, check_request
from orcaserve.core.pooling import Pooling
from orcaserve.schedule_log.reader import read_log
from orcaserve.simulation.reproduce import reproduce

sys.path.insert(0, str(Path(__file__).parents[1]))
from encoder_decoders import add_tokenizer, save

PROMPTS = ["translate this: ab", "X", "a somewhat longer text, that fills more than one page of slots", "0 1 2"]
GREEDY = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True, skip_special_tokens=False)


@pytest.fixture(scope="module", params=["t5 v1.1", "bart scaled, forced"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    model = save(request.param, folder)
    add_tokenizer(folder)
    return model, folder


@pytest.fixture(scope="module")
def llm(made: tuple[Any, Path]) -> Iterator[LLM]:
    with LLM(made[1], max_num_seqs=3, n_slots=512) as llm:
        yield llm


def generate(model: Any, ids: list[int], **options: Any) -> list[int]:
    """What transformers makes of it."""
    with torch.no_grad():
        made = model.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=20, do_sample=False,
            num_beams=1, eos_token_id=None, use_cache=False, **options,
        )  # fmt: skip
    return list(map(int, made[0, 1:]))


def test_texts_are_those_of_transformers_alone_and_together(made: tuple[Any, Path], llm: LLM) -> None:
    model, _ = made
    alone = [llm.generate(prompt, GREEDY)[0] for prompt in PROMPTS]
    together = llm.generate(PROMPTS, GREEDY)
    for prompt, one, other in zip(PROMPTS, alone, together, strict=True):
        assert one.completions == other.completions
        ids = llm.tokenizer.encode(prompt)
        assert ids[-1] in llm.facts.eos_ids and one.prompt_token_ids == ids
        expected = generate(model, ids)
        assert one.completions[0].token_ids == expected
        assert one.completions[0].text == llm.tokenizer.decode(expected, skip_special_tokens=False)
        assert one.completions[0].finish_reason == "length"


def test_penalties_are_for_what_the_decoder_has(made: tuple[Any, Path], llm: LLM) -> None:
    for prompt in PROMPTS:
        (completion,) = llm.generate(prompt, replace(GREEDY, repetition_penalty=1.4))[0].completions
        assert completion.token_ids == generate(made[0], llm.tokenizer.encode(prompt), repetition_penalty=1.4)


def test_an_end_ends_it_and_draws_repeat(llm: LLM) -> None:
    params = SamplingParams(max_tokens=60, temperature=1.5, seed=3, n=4, logprobs=2)
    first, again = llm.generate(PROMPTS[0], params)[0], llm.generate(PROMPTS[0], params)[0]
    assert first.completions == again.completions
    assert len({completion.text for completion in first.completions}) > 1
    for completion in first.completions:
        assert completion.logprobs is not None and len(completion.logprobs) == len(completion.token_ids)
        assert all(told.logprob <= 0 for told in completion.logprobs)


def test_a_grammar_is_kept_to_whatever_the_model_puts_out_first(llm: LLM) -> None:
    grammar = Grammar(GrammarKind.REGEX, "[a-c]{4}")
    params = SamplingParams(max_tokens=12, temperature=0, grammar=grammar)
    (completion,) = llm.generate(PROMPTS[0], params)[0].completions
    assert len(completion.text) == 4 and set(completion.text) <= set("abc") and completion.finish_reason == "stop"


def test_what_cannot_be_is_said(llm: LLM) -> None:
    longest = llm.facts.longest_prompt
    with pytest.raises(CannotFit, match="the encoder reads"):
        llm.generate([[5] * (longest + 1)], GREEDY)
    with pytest.raises(CannotFit, match=r"K/V slots, in pages of 16|the decoder gives"):
        llm.generate([[5] * 100], replace(GREEDY, max_tokens=500))
    with pytest.raises(InvalidRequest, match="no log-probabilities of its tokens"):
        llm.generate("a", replace(GREEDY, prompt_logprobs=1))
    assert llm.facts.embedding_size == 0
    with pytest.raises(InvalidRequest, match="makes no embeddings"):
        check_request([5], SamplingParams(max_tokens=0, pooling=Pooling.MEAN), llm.facts)
    with pytest.raises(InvalidRequest, match="no chat template"):
        llm.chat([{"role": "user", "content": "a"}])


def config(folder: Path, **scheduler: Any) -> EngineConfig:
    return EngineConfig(ModelConfig(folder, "tiny"), KVConfig(n_slots=96), SchedulerConfig(4, **scheduler))


@pytest.mark.parametrize(
    "scheduler",
    [{"policy": "overcommit"}, {"max_num_batched_tokens": 8}, {"prefix_caching": True}, {"policy": "cellular"}],
    ids=lambda each: next(iter(each.values())),
)
def test_texts_are_the_same_under_every_schedule(
    made: tuple[Any, Path], llm: LLM, scheduler: dict[str, Any], tmp_path: Path
) -> None:
    """With so few slots that overcommit preempts: then the encoder reads the prompt again. The log of it reproduces."""
    expected = [each.completions for each in llm.generate(PROMPTS, GREEDY)]
    path = tmp_path / "run.log"
    with LLM.from_config(replace(config(made[1], **scheduler), schedule_log=ScheduleLogConfig(path))) as other:
        assert [each.completions for each in other.generate(PROMPTS, GREEDY)] == expected
        n_preempted = other._host._status.n_preempted
    assert (n_preempted > 0) == (scheduler.get("policy") == "overcommit")
    found = reproduce(read_log(path))
    assert found.difference is None and found.n_same >= 20


def test_settings_that_do_not_suit_it_are_named(made: tuple[Any, Path]) -> None:
    plain = config(made[1])
    model = plain.model
    for wrong, flag in (
        (replace(plain, parallel=ParallelConfig(pipeline_parallel_size=6)), "--pipeline-parallel-size"),
        (replace(plain, parallel=ParallelConfig(tensor_parallel_size=5)), "--tensor-parallel-size"),
        (replace(plain, parallel=ParallelConfig(2, layer_split=(2, 1))), "--layer-split"),
        (replace(plain, deterministic=True), "--deterministic"),
        (replace(plain, model=replace(model, quantization="int8")), "--quantization"),
        (replace(plain, kv=KVConfig(dtype="int8")), "--kv-cache-dtype"),
        (replace(plain, scheduler=SchedulerConfig(policy="request-level")), "--scheduling-policy"),
    ):
        with pytest.raises(ConfigError) as refusal:
            LLM.from_config(wrong)
        assert refusal.value.name == flag, wrong


def test_the_longest_text_is_for_each_side(made: tuple[Any, Path]) -> None:
    """T5 has no longest one; BART's is that of its tables."""
    plain = config(made[1])
    with LLM.from_config(replace(plain, model=replace(plain.model, max_model_len=32))) as llm:
        assert (llm.facts.longest_prompt, llm.facts.most_output(1), llm.facts.context_length) == (32, 32, 64)
    longer = replace(plain, model=replace(plain.model, max_model_len=600))
    if "bart" in json.loads((made[1] / "config.json").read_text())["model_type"]:
        with pytest.raises(ConfigError, match="160 positions for the prompt and 160 for the output"):
            LLM.from_config(longer)
    else:
        with LLM.from_config(longer) as llm:
            assert llm.facts.context_length == 1200


def test_without_a_tokenizer_json_it_is_not_served(made: tuple[Any, Path], tmp_path: Path) -> None:
    for file in made[1].iterdir():
        if file.name != "tokenizer.json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(UnsupportedModel, match=r"no tokenizer\.json"):
        LLM(tmp_path)
