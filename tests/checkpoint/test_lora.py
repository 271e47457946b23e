"""Adapters that cannot be run are refused by name, and nothing of their files is run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from orcaserve.checkpoint.lora import LoraFiles, digest
from orcaserve.core.errors import CheckpointError, ModelNotFound, UnsupportedModel

sys.path.insert(0, str(Path(__file__).parents[1]))
from lora_files import write_adapter

SHAPES = {"model.layers.0.self_attn.q_proj": (8, 6), "model.layers.1.mlp.down_proj": (6, 10)}


def write(folder: Path, **config: Any) -> Path:
    return write_adapter(folder / "adapter", SHAPES, 1, **config)


def test_what_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, rank=4, ranks={"down_proj": 3}, alpha=6, alpha_pattern={"mlp.down_proj": 9})
    with LoraFiles(path) as files:
        assert set(files.modules) == set(SHAPES) and files.rank == 4 and not files.transposed
        q, down = (files.read(module) for module in SHAPES)
        assert (q.rank, q.scale, down.rank, down.scale) == (4, 1.5, 3, 3.0)
        stored = load_file(path / "adapter_model.safetensors")
        assert np.array_equal(q.b, stored["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"])


def test_rank_stabilised_scales(tmp_path: Path) -> None:
    with LoraFiles(write(tmp_path, rank=4, alpha=6, use_rslora=True)) as files:
        assert files.read("model.layers.0.self_attn.q_proj").scale == 3.0


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"alora_invocation_tokens": [3]}, "alora_invocation_tokens"),
        ({"alpha_pattern": {"(a+)+$": 4}}, "alpha_pattern"),
    ],
)
def test_other_kinds_are_refused_by_name(tmp_path: Path, config: dict[str, Any], named: str) -> None:
    path = write(tmp_path, **config)
    with pytest.raises(UnsupportedModel, match=named), LoraFiles(path) as files:
        files.read("model.layers.0.self_attn.q_proj")


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"r": 5}, "rank 4"),
        ({"fan_in_fan_out": "yes"}, "fan_in_fan_out"),
        ({"lora_alpha": "many"}, "lora_alpha"),
        ({"lora_alpha": float("inf")}, "lora_alpha"),
    ],
)
def test_contradictions(tmp_path: Path, config: dict[str, Any], named: str) -> None:
    path = write(tmp_path)
    settings = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps({**settings, **config}))
    with pytest.raises(CheckpointError, match=named), LoraFiles(path) as files:
        files.read("model.layers.0.self_attn.q_proj")


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("base_model.model.model.embed_tokens.lora_embedding_A", "embedding"),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector.weight", "DoRA"),
        ("model.layers.0.self_attn.k_proj.lora_A.weight", "lora_A"),
        ("base_model.model.model.layers.0.self_attn.q_proj.weight", "lora_A"),
    ],
)
def test_other_tensors_are_refused_by_name(tmp_path: Path, name: str, named: str) -> None:
    path = write(tmp_path)
    tensors = load_file(path / "adapter_model.safetensors")
    save_file({**tensors, name: np.ones((4, 6), np.float32)}, path / "adapter_model.safetensors")
    with pytest.raises(UnsupportedModel, match=named):
        LoraFiles(path)


def test_half_an_adapter(tmp_path: Path) -> None:
    path = write(tmp_path)
    tensors = load_file(path / "adapter_model.safetensors")
    del tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"]
    save_file(tensors, path / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match="lacks one"):
        LoraFiles(path)


def test_numbers_that_are_none(tmp_path: Path) -> None:
    path = write(tmp_path)
    tensors = load_file(path / "adapter_model.safetensors")
    tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"][0, 0] = np.nan
    save_file(tensors, path / "adapter_model.safetensors")
    with LoraFiles(path) as files, pytest.raises(CheckpointError, match="not finite"):
        files.read("model.layers.0.self_attn.q_proj")


def test_pickled_files_are_not_opened(tmp_path: Path) -> None:
    path = write(tmp_path)
    (path / "adapter_model.safetensors").unlink()
    (path / "adapter_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(UnsupportedModel, match="pickled"):
        LoraFiles(path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        LoraFiles(tmp_path)
    with pytest.raises(ModelNotFound):
        digest(tmp_path)


def test_a_digest_is_of_both_files(tmp_path: Path) -> None:
    path = write(tmp_path)
    first = digest(path)
    assert digest(path) == first
    with (path / "adapter_config.json").open("a") as file:
        file.write(" ")
    assert digest(path) != first
