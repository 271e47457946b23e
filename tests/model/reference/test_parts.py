"""Parts of the PyTorch model, one after the other and side by side, are the model."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import Tensor

from orcaserve.model.kv_manager import KVManager
from orcaserve.model.loader import ModelFiles
from orcaserve.model.part import Part
from orcaserve.model.reference.builder import load_reference, load_reference_part
from orcaserve.model.reference.kv_region import KVRegion

BATCHES: list[list[tuple[int, list[int]]]] = [
    [(0, list(range(1, 40))), (1, [7, 8, 9])],
    [(0, [5]), (1, [6, 7]), (2, [100, 101, 102])],
    [(2, [3]), (0, [4]), (1, [5])],
]
CPU = torch.device("cpu")


class Shards:
    """Sums a tensor over threads, in the order of the shards."""

    def __init__(self, n: int) -> None:
        self._barrier, self._tensors = Barrier(n), [torch.empty(0)] * n

    def all_reduce(self, shard: int, x: Tensor) -> None:
        self._tensors[shard] = x
        self._barrier.wait(20)
        total = torch.stack(self._tensors).sum(0)
        self._barrier.wait(20)
        x.copy_(total)


class Partitioned:
    """Stages of shards in one process, every shard with a thread of its own."""

    def __init__(self, path: Path, splits: Sequence[int], n_shards: int) -> None:
        with ModelFiles(path) as files:
            spec = files.spec
        self.pages = KVManager(2048, 16)
        self.stages = []
        for begin, end in pairwise([0, *splits, spec.n_layers]):
            sums, stage = Shards(n_shards), []
            for shard in range(n_shards):
                part = Part(spec, range(begin, end), shard, n_shards)
                reduce = None if n_shards == 1 else lambda x, sums=sums, shard=shard: sums.all_reduce(shard, x)
                model = load_reference_part(path, part, torch.float32, CPU, reduce)
                stage.append((model, KVRegion(part.own_spec, self.pages.n_pages, 16)))
            self.stages.append(stage)

    def step(self, batch: list[tuple[int, list[int]]]) -> Tensor:
        layout = self.pages.lay_out([(request, len(tokens)) for request, tokens in batch])
        x = torch.tensor([t for _, tokens in batch for t in tokens])
        for stage in self.stages:
            with ThreadPoolExecutor(len(stage)) as pool:
                results = list(pool.map(lambda shard, x=x: shard[0].forward(x, layout, shard[1]), stage))
            x = results[0]
            if stage is not self.stages[-1]:
                assert all(torch.equal(result, x) for result in results)
        return torch.cat(results, dim=1)


def whole(path: Path) -> list[Tensor]:
    model, pages = load_reference(path), KVManager(2048, 16)
    region = KVRegion(model.spec, pages.n_pages, 16)
    return [
        model.forward(
            torch.tensor([t for _, tokens in batch for t in tokens]),
            pages.lay_out([(request, len(tokens)) for request, tokens in batch]),
            region,
        )
        for batch in BATCHES
    ]


@pytest.fixture(scope="module")
def llama(tiny_llama: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("llama")
    tiny_llama(num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=3, intermediate_size=224,
               attention_bias=True, mlp_bias=True).save_pretrained(folder)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def tied(tiny_llama: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("tied")
    tiny_llama(tie_word_embeddings=True, num_key_value_heads=3).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def gpt2(tiny_gpt2: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("gpt2")
    tiny_gpt2().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("splits", [(), (1,), (2, 3), (1, 2, 3)])
def test_stages_are_the_model_to_the_bit(splits: Sequence[int], llama: Path) -> None:
    parts = Partitioned(llama, splits, 1)
    for batch, expected in zip(BATCHES, whole(llama), strict=True):
        assert torch.equal(parts.step(batch), expected)


@pytest.mark.parametrize("splits", [(), (1,)])
@pytest.mark.parametrize("n_shards", [2, 3])
@pytest.mark.parametrize("kind", ["llama", "tied", "gpt2"])
def test_shards_are_the_model(kind: str, n_shards: int, splits: Sequence[int], request: pytest.FixtureRequest) -> None:
    """Sums run in another order: equal but for rounding. GPT-2's matrices are stacked and transposed."""
    path: Path = request.getfixturevalue(kind)
    parts = Partitioned(path, splits, n_shards)
    for batch, expected in zip(BATCHES, whole(path), strict=True):
        assert torch.allclose(parts.step(batch), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_a_part_has_its_own_weights_and_no_others(llama: Path) -> None:
    parts = Partitioned(llama, (1,), 3)
    (first, _), (last, region) = parts.stages[0][1], parts.stages[1][1]
    assert (len(first.weights.layers), len(last.weights.layers)) == (1, 3)
    assert first.weights.embedding is not None and first.weights.norm is None and first.weights.head is None
    assert last.weights.embedding is None and last.weights.norm is not None
    spec, layer = last.spec, last.weights.layers[0]
    assert layer.qkv.weight.shape == (4 * spec.head_dim, spec.hidden_size)
    assert layer.out.weight.shape == (spec.hidden_size, 2 * spec.head_dim)
    assert last.weights.head.weight.shape == (len(last.part.vocabulary), spec.hidden_size)
    assert region.keys.shape[0] == 3 and region.keys.shape[3] == 1


def test_shards_need_sums(llama: Path) -> None:
    with ModelFiles(llama) as files:
        spec = files.spec
    with pytest.raises(ValueError, match="2 shards, and no all_reduce"):
        load_reference_part(llama, Part(spec, range(4), 0, 2), torch.float32, CPU, None)
    with pytest.raises(ValueError, match="1 shards, and an all_reduce"):
        load_reference_part(llama, Part(spec, range(2)), torch.float32, CPU, lambda x: None)
