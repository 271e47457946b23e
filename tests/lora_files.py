"""Random adapters, written as PEFT writes them, and what they make of their base model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def linears(model: Path, targets: Sequence[str] = ALL) -> dict[str, tuple[int, int]]:
    """[outputs, inputs] of the Linears of a checkpoint folder that end with one of these names."""
    tensors = load_file(model / "model.safetensors")
    found = {name.removesuffix(".weight"): tensor.shape for name, tensor in tensors.items()}
    return {name: shape for name, shape in found.items() if name.rpartition(".")[2] in targets}


def write_adapter(
    folder: Path,
    shapes: Mapping[str, tuple[int, int]],
    seed: int,
    rank: int = 4,
    alpha: float = 8,
    size: float = 0.2,
    ranks: Mapping[str, int] | None = None,
    **config: Any,
) -> Path:
    """ranks: of Linears with these last names, others than `rank`."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, (n_out, n_in) in shapes.items():
        r = (ranks or {}).get(name.rpartition(".")[2], rank)
        for which, shape in (("A", (r, n_in)), ("B", (n_out, r))):
            tensors[f"base_model.model.{name}.lora_{which}.weight"] = (random.standard_normal(shape) * size).astype(
                np.float32
            )
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "some/where",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.05,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "modules_to_save": None,
        "rank_pattern": dict(ranks or {}),
        "alpha_pattern": {},
        "target_modules": sorted({name.rpartition(".")[2] for name in shapes}),
        "use_dora": False,
        "use_rslora": False,
    }
    (folder / "adapter_config.json").write_text(json.dumps({**settings, **config}))
    return folder


def merge(
    model: Path, adapter: Path, folder: Path, scale: float | Mapping[str, float], transposed: bool = False
) -> Path:
    """A checkpoint whose weights are W + scale * B A. scale: one for all, or by last name."""
    shutil.copytree(model, folder)
    weights, low_rank = load_file(model / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    for name, a in low_rank.items():
        if ".lora_A." not in name:
            continue
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        factor = scale if isinstance(scale, int | float) else scale[module.rpartition(".")[2]]
        gain = factor * (low_rank[name.replace("lora_A", "lora_B")].astype(np.float64) @ a)
        key = f"{module}.weight"
        weights[key] = (weights[key] + (gain.T if transposed else gain)).astype(np.float32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
