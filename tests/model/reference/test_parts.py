"""Parts of the PyTorch model, one after the other and side by side, are the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from parted import BATCHES, CPU, Partitioned, whole

from orcaserve.model.loader import ModelFiles
from orcaserve.model.part import Part
from orcaserve.model.reference.builder import load_reference_part


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
