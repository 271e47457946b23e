"""The random model is a checkpoint like any other."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
from random_model import BILLION, MIXTURE, Sizes, write_model

from orcaserve.checkpoint.checkpoint import open_checkpoint
from orcaserve.evaluation.sizes import model_spec

SMALL = Sizes(hidden=64, layers=2, heads=4, kv_heads=2, intermediate=96, vocab=128)


def test_it_has_the_sizes_asked_for(tmp_path: Path) -> None:
    write_model(tmp_path, SMALL)
    spec = model_spec(tmp_path)
    assert (spec.hidden_size, spec.n_layers, spec.n_kv_heads, spec.head_dim) == (64, 2, 2, 16)
    checkpoint = open_checkpoint(tmp_path)
    matrices = [info for info in checkpoint.tensors.values() if len(info.shape) == 2]
    assert sum(prod(info.shape) for info in matrices) == SMALL.parameters
    weights = checkpoint.read("model.layers.1.mlp.down_proj.weight")
    assert weights.shape == (64, 96) and 0.9 < np.std(weights) * 96**0.5 < 1.1
    checkpoint.close()


def test_a_mixture_has_experts(tmp_path: Path) -> None:
    sizes = replace(SMALL, experts=3, chosen=2)
    write_model(tmp_path, sizes)
    spec = model_spec(tmp_path)
    assert (spec.n_experts, spec.n_chosen, spec.expert_size) == (3, 2, 96)
    checkpoint = open_checkpoint(tmp_path)
    matrices = [info for info in checkpoint.tensors.values() if len(info.shape) == 2]
    checkpoint.close()
    assert sum(prod(info.shape) for info in matrices) == sizes.parameters
    assert 0.7e9 < MIXTURE.parameters < 0.9e9


def test_the_large_one_has_1_1_billion_parameters() -> None:
    assert 1.0e9 < BILLION.parameters < 1.2e9
    assert replace(BILLION, layers=0).parameters == 2 * 2048 * 32_000
