"""Embeddings of a worker against transformers' hidden states, on both kinds of device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.config import EngineConfig, KVConfig, ModelConfig, SchedulerConfig
from orcaserve.core import Batch, BatchEntry, IterationResult, Phase, Pooling
from orcaserve.core import SamplingParams as Params
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.parameter import Floats
from orcaserve.worker import pooling
from orcaserve.worker.pooling import Pool, PooledRows, fill
from orcaserve.worker.worker import Worker

torch = pytest.importorskip("torch")

PROMPTS = [[3, 4, 5, 9, 3, 8, 200, 17, 41, 255, 0, 90, 3], [7] * 40, [5], list(range(100, 171)), [1, 2]]


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made by transformers, with norms that are not all ones."""
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

    torch.manual_seed(0)
    if request.param == "llama":
        config: Any = LlamaConfig(
            vocab_size=256, hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=6,
            num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False, initializer_range=0.3,
        )  # fmt: skip
    else:
        config = GPT2Config(
            vocab_size=256, n_embd=48, n_layer=3, n_head=6, n_positions=512, initializer_range=0.3, bos_token_id=1,
            eos_token_id=2,
        )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "ln_" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> Any:
    """Hidden states of a text's tokens after the last norm [tokens, hidden], by transformers in float32."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(checkpoint, dtype=torch.float32).eval()

    def states(ids: Sequence[int]) -> Any:
        with torch.inference_mode():
            return model(torch.tensor([list(ids)])).last_hidden_state[0].double().numpy()

    return states


class Rig:
    """exact: rows do not depend on how many are beside them. PyTorch rounds them by that."""

    def __init__(self, model: Path, device: str) -> None:
        config = ModelConfig(model, "tiny", dtype="float32", quantization="none", device=device, threads=2)
        self.worker = Worker.load(EngineConfig(config, KVConfig(n_slots=1024, dtype="float32"), SchedulerConfig(8)))
        self.exact = device == "cpu"
        self._iterations = count(1)
        self._live: set[int] = set()

    def go_on(self, *entries: BatchEntry) -> IterationResult:
        self._live |= {entry.request_id for entry in entries}
        return self.worker.run(Batch(next(self._iterations), entries))

    def run(self, *entries: BatchEntry) -> IterationResult:
        """Where nobody else is live any more."""
        drops, self._live = tuple(self._live), {entry.request_id for entry in entries}
        return self.worker.run(Batch(next(self._iterations), entries, drops))


@pytest.fixture(scope="module", params=["cpu", "reference"])
def rig(request: pytest.FixtureRequest, checkpoint: Path) -> Rig:
    return Rig(checkpoint, request.param)


def pooled(id: int, prompt: Sequence[int], kind: Pooling, begin: int = 0, end: int | None = None) -> BatchEntry:
    """A piece of an initiation, or all of it."""
    end = len(prompt) if end is None else end
    n_to_come = len(prompt) - end
    params = None if n_to_come else Params(max_tokens=0, pooling=kind)
    tokens = prompt[begin:end]
    return BatchEntry(id, Phase.INITIATION, tokens, begin, params, n_to_come=n_to_come, pooling=kind)


def generating(id: int, prompt: Sequence[int]) -> BatchEntry:
    return BatchEntry(id, Phase.INITIATION, prompt, 0, Params(max_tokens=9, temperature=0, logprobs=1))


def vector(embedding: bytes) -> Any:
    return np.frombuffer(embedding, "<f4")


def check(embedding: bytes, states: Any, kind: Pooling) -> None:
    expected = states[-1] if kind is Pooling.LAST else states.mean(axis=0)
    error = np.linalg.norm(vector(embedding) - expected) / np.linalg.norm(expected)
    assert error < 1e-4


@pytest.mark.parametrize("kind", list(Pooling))
def test_it_is_what_transformers_states_give_and_beside_others_the_same_to_the_bit(
    rig: Rig, oracle: Any, kind: Pooling
) -> None:
    ids = list(range(len(PROMPTS)))
    alone = []
    for id, prompt in zip(ids, PROMPTS, strict=True):
        result = rig.run(pooled(id, prompt, kind))
        assert result.failures == {} and result.embeddings.keys() == {id} and result.logprobs == {}
        check(result.embeddings[id], oracle(prompt), kind)
        alone.append(result.embeddings[id])
    text = rig.run(generating(9, [5, 6, 7]))
    entries = [pooled(id, prompt, kind) for id, prompt in zip(ids, PROMPTS, strict=True)]
    together = rig.run(*entries, generating(9, [5, 6, 7]))
    assert together.tokens[-1] == text.tokens[0] and together.logprobs.keys() == {9}
    if rig.exact:
        assert [together.embeddings[id] for id in ids] == alone
    for id, prompt in zip(ids, PROMPTS, strict=True):
        check(together.embeddings[id], oracle(prompt), kind)


@pytest.mark.parametrize("kind", list(Pooling))
@pytest.mark.parametrize("ends", [(4, 13), (1, 2, 13), (12, 13), tuple(range(1, 14))])
def test_in_pieces_it_is_the_same(rig: Rig, oracle: Any, kind: Pooling, ends: Sequence[int]) -> None:
    [prompt, *_] = PROMPTS
    whole = rig.run(pooled(1, prompt, kind)).embeddings[1]
    begin = 0
    for number, end in enumerate(ends):
        beside = [pooled(2, [9, 8, 7], kind)] if number == 1 else []
        result = (rig.go_on if begin else rig.run)(pooled(0, prompt, kind, begin, end), *beside)
        assert result.failures == {}
        assert result.embeddings.keys() == {each.request_id for each in beside} | ({0} if end == 13 else set())
        begin = end
    check(result.embeddings[0], oracle(prompt), kind)
    if rig.exact:
        assert result.embeddings[0] == whole


def test_one_that_starts_anew_is_pooled_anew(rig: Rig) -> None:
    [prompt, *_] = PROMPTS
    whole = rig.run(pooled(1, prompt, Pooling.MEAN)).embeddings[1]
    rig.run(pooled(0, prompt, Pooling.MEAN, 0, 5))
    again = rig.run(pooled(0, prompt, Pooling.MEAN)).embeddings[0]
    assert vector(again) == pytest.approx(vector(whole), rel=1e-5, abs=1e-6)


def test_states_that_are_no_numbers_end_their_request_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = rig.worker._backend
    model = backend._model
    right = model.normed

    def broken(states: Any, *rows: Any) -> Any:
        normed = right(states, *rows)
        normed[4, 7] = float("nan")  # the second row of the second request
        return normed

    monkeypatch.setattr(model, "normed", broken)
    prompts = {i: [i, 2, 3] for i in (0, 1, 2)}
    result = rig.run(*(pooled(i, prompt, Pooling.MEAN) for i, prompt in prompts.items()))
    assert result.failures == {1: "the model's output is not a number"}
    assert result.embeddings.keys() == {0, 2}


def test_who_cannot_run_fails_alone(rig: Rig) -> None:
    outside, good = pooled(0, [999, 1], Pooling.MEAN), pooled(1, [1, 2], Pooling.MEAN)
    result = rig.run(outside, good)
    assert result.failures.keys() == {0} and result.embeddings.keys() == {1}


@given(data=st.data(), width=st.integers(1, 5), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_pools_are_filled_some_rows_at_a_time(data: st.DataObject, width: int, sizes: list[int]) -> None:
    """Whatever fits the memory, and however rows lie apart: each pool has its own rows, in their order."""
    n_most = data.draw(st.integers(1, 12))
    gap = data.draw(st.integers(0, 3))
    states = np.random.default_rng(0).standard_normal((sum(sizes) + gap * len(sizes), width)).astype(np.float32)
    asked: list[int] = []

    def normed(rows: Int32s) -> Floats:
        assert 1 <= len(rows) <= max(n_most, 1)
        asked.extend(rows.tolist())
        return states[rows]

    pools, first = [], 0
    for size in sizes:
        pools.append(PooledRows(first, size, Pool()))
        first += size + gap
    before = pooling.MOST_FLOATS
    pooling.MOST_FLOATS = n_most * width
    try:
        fill(pools, width, normed)
    finally:
        pooling.MOST_FLOATS = before
    assert asked == [row for each in pools for row in range(each.first, each.first + each.n)]
    for each in pools:
        alone = Pool()
        for row in states[each.first : each.first + each.n]:  # one at a time
            alone.add(row[None])
        assert each.pool.n == each.n and each.pool.mean() == alone.mean()


def test_a_layout_of_pieces_pools_what_it_should() -> None:
    from orcaserve.worker.pooling import Pools

    layout = Layout(np.array([0, 3, 5, 6, 8], np.int32), np.zeros(4, np.int32), np.zeros((4, 1), np.int32))
    entries = [
        pooled(1, [1, 2, 3, 4], Pooling.MEAN, 0, 3),
        pooled(2, [1, 2, 3, 4], Pooling.LAST, 0, 2),
        generating(3, [1]),
        pooled(4, [1, 2], Pooling.LAST),
    ]
    pools = Pools()
    assert [(each.first, each.n) for each in pools.rows(entries, layout)] == [(0, 3), (7, 1)]
    assert pools.take([replace(entries[0])]) == {}
    assert pools.take(entries) == {}  # nothing was filled: another worker has the last layers
