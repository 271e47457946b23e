"""Quantised checkpoint folders made of plain ones, by the definitions of their formats. Imported by name.

Nothing here uses what is tested: numbers are packed with shifts, and what they stand for is (number - zero) * scale.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

Ints = NDArray[np.int64]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass
class Linear:
    """numbers [n_out, n_in], zeros and scales [n_out, groups], group [n_in] of each input."""

    numbers: Ints
    zeros: Ints
    scales: Tensor
    group: Ints

    def weights(self) -> NDArray[np.float32]:
        scales = self.scales.float().numpy()
        return ((self.numbers - self.zeros[:, self.group]) * scales[:, self.group]).astype(np.float32)


def pack(numbers: Ints, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Numbers from 0 on along the last dimension into int32, filled up with zeros. order: which is in which place."""
    per = 32 // bits
    filled = np.pad(numbers, [*[(0, 0)] * (numbers.ndim - 1), (0, -numbers.shape[-1] % per)])
    words = filled.reshape(*filled.shape[:-1], -1, per)
    packed = sum(words[..., number] << (bits * place) for place, number in enumerate(order or range(per)))
    return torch.from_numpy(np.asarray(packed).astype(np.uint32).view(np.int32).copy())


class Folder:
    """A tiny model in both forms: `folder`, quantised, and `plain`, with the weights the former stands for."""

    def __init__(self, source: Path, root: Path, settings: dict[str, Any],
                 quantise: Callable[[str, int, int], tuple[Linear, dict[str, Tensor]]]) -> None:  # fmt: skip
        self.folder, self.plain = root / "quantised", root / "plain"
        config = json.loads((source / "config.json").read_text())
        tensors = load_file(source / "model.safetensors")
        plain = dict(tensors)
        self.linears: dict[str, Linear] = {}
        for name in [name for name in tensors if name.endswith("_proj.weight")]:
            linear = name.removesuffix(".weight")
            self.linears[linear], parts = quantise(linear, *tensors.pop(name).shape)
            tensors |= {f"{linear}.{part}": tensor.contiguous() for part, tensor in parts.items()}
            plain[name] = torch.from_numpy(self.linears[linear].weights())
        self.plain.mkdir(parents=True)
        (self.plain / "config.json").write_text(json.dumps(config))
        save_file(plain, self.plain / "model.safetensors")
        self._save({**config, "quantization_config": settings}, tensors)

    def _save(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "config.json").write_text(json.dumps(config))
        save_file(tensors, self.folder / "model.safetensors")

    def change(self, f: Callable[[dict[str, Any], dict[str, Tensor]], object]) -> None:
        """f(quantization_config, tensors) changes them in place."""
        config = json.loads((self.folder / "config.json").read_text())
        tensors = load_file(self.folder / "model.safetensors")
        f(config["quantization_config"], tensors)
        self._save(config, tensors)


def _random(rng: np.random.Generator, n_out: int, n_in: int, size: int, low: int, high: int, symmetric: int | None,
            dtype: torch.dtype) -> Linear:  # fmt: skip
    """symmetric: the zero of all; None: any of the numbers."""
    groups = -(-n_in // size)
    numbers = rng.integers(low, high + 1, (n_out, n_in))
    zeros = rng.integers(low, high + 1, (n_out, groups)) if symmetric is None else np.full((n_out, groups), symmetric)
    span = (high - low) / 15
    scales = torch.from_numpy((rng.random((n_out, groups)) * 0.02 + 0.001) / span).to(dtype)
    return Linear(numbers, zeros, scales, np.arange(n_in) // size)


def awq(
    source: Path, root: Path, group_size: int, dtype: torch.dtype = torch.float16, symmetric: bool = False
) -> Folder:
    rng = np.random.default_rng(0)

    def quantise(name: str, n_out: int, n_in: int) -> tuple[Linear, dict[str, Tensor]]:
        size = n_in if group_size == -1 else group_size
        linear = _random(rng, n_out, n_in, size, 0, 15, 8 if symmetric else None, dtype)
        return linear, {
            "qweight": pack(linear.numbers.T, 4, AWQ_ORDER),
            "qzeros": pack(linear.zeros.T, 4, AWQ_ORDER),
            "scales": linear.scales.T,
        }

    settings = {"quant_method": "awq", "bits": 4, "group_size": group_size, "version": "gemm", "zero_point": True,
                "modules_to_not_convert": None}  # fmt: skip
    return Folder(source, root, settings, quantise)


def compressed(
    source: Path,
    root: Path,
    bits: int,
    group_size: int | str,
    symmetric: bool = True,
    packed: bool = True,
    dtype: torch.dtype = torch.bfloat16,
    packed_zeros: bool = True,
    static_inputs: bool = False,
) -> Folder:
    """group_size: a number, "channel" or "tensor"."""
    rng = np.random.default_rng(0)
    half = 1 << (bits - 1)

    def quantise(name: str, n_out: int, n_in: int) -> tuple[Linear, dict[str, Tensor]]:
        size = n_in if isinstance(group_size, str) else group_size
        linear = _random(rng, n_out, n_in, size, -half, half - 1, 0 if symmetric else None, dtype)
        scale, zeros = linear.scales, torch.from_numpy(linear.zeros.astype(np.int8))
        if group_size == "tensor":
            linear.scales, linear.zeros = scale[:1].expand(n_out, 1), np.broadcast_to(linear.zeros[:1], (n_out, 1))
            scale, zeros = scale[0], zeros[0]
        parts = {"weight_scale": scale}
        if packed:
            parts |= {"weight_packed": pack(linear.numbers + half, bits), "weight_shape": torch.tensor([n_out, n_in])}
        else:
            parts["weight"] = torch.from_numpy(linear.numbers.astype(np.int8))
        if not symmetric:
            along_outputs = packed and packed_zeros and group_size != "tensor"
            parts["weight_zero_point"] = pack((linear.zeros + half).T, bits).T if along_outputs else zeros
        if static_inputs:
            parts["input_scale"] = torch.tensor([0.02])
        return linear, parts

    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": group_size, "group_size": None,
               "dynamic": False, "actorder": None, "block_structure": None, "observer": "minmax",
               "observer_kwargs": {}}  # fmt: skip
    if not isinstance(group_size, str):
        weights |= {"strategy": "group", "group_size": group_size}
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "output_activations": None,
             "input_activations": None if packed else inputs}  # fmt: skip
    settings = {"quant_method": "compressed-tensors", "format": "pack-quantized" if packed else "int-quantized",
                "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None,
                "quantization_status": "compressed", "global_compression_ratio": 1.5, "version": "0.9.0",
                "sparsity_config": {}, "transform_config": {}}  # fmt: skip
    return Folder(source, root, settings, quantise)
