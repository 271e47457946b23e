"""What a model needs at least: bytes of its weights and K/V in the form they are held in, and arithmetic per token.

Computed from the files' headers, independently of how the engine lays things out: what it keeps beside that (padding,
copies, scales of int8 weights) counts as its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from orcaserve.checkpoint.checkpoint import open_checkpoint
from orcaserve.checkpoint.converted import WEIGHTS, is_converted
from orcaserve.checkpoint.four_bits import KINDS as INT4_KINDS
from orcaserve.checkpoint.safetensors import SafetensorsFile
from orcaserve.checkpoint.tensor_info import TensorInfo
from orcaserve.config import EngineConfig
from orcaserve.model.loader import ModelFiles
from orcaserve.model.spec import ModelSpec
from orcaserve.native.packed_model import PackedFile
from orcaserve.native.precision import FULL_KINDS, choose_precision

BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0, "int4": 20 / 32}  # int4: 32 halves of a byte, scale and minimum


@dataclass(frozen=True, slots=True)
class Held:
    """A model as an engine of some settings holds it. weights, kv_cache_dtype: in one word. weight_bytes: of all."""

    spec: ModelSpec
    weights: str
    kv_cache_dtype: str
    weight_bytes: int


def how_held(config: EngineConfig) -> Held:
    """Every `auto` decided, as the engine decides it. Raises ModelError if the files cannot be had."""
    model = config.model
    if is_converted(model.path):
        file = PackedFile(model.path / WEIGHTS)
        spec, precision = file.spec, file.precision
        tensors = SafetensorsFile(model.path / WEIGHTS).tensors.values()
        n_bytes = sum(info.n_bytes for info in tensors)
    else:
        dtype, quantization = model.dtype, model.quantization
        if model.device != "cpu":  # PyTorch knows floats only
            dtype, quantization = "float32" if dtype == "auto" else dtype, "none"
        with ModelFiles(model.path) as files:
            spec, precision = files.spec, choose_precision(dtype, quantization, files.matrix_kinds)
        n_bytes = weight_bytes(model.path, precision.held)
    return Held(spec, precision.held, precision.with_kv(config.kv.dtype).kv, n_bytes)


def model_spec(path: Path) -> ModelSpec:
    with ModelFiles(path) as files:
        return files.spec


def weight_bytes(path: Path, form: str) -> int:
    """Bytes of all weights, each counted once, when matrices are held in `form`: float32, bfloat16, int8 or int4."""
    checkpoint = open_checkpoint(path)
    try:
        return round(sum(_bytes(info, form) for info in checkpoint.tensors.values()))
    finally:
        checkpoint.close()


def stored_bytes(path: Path) -> int:
    """Bytes of all weights as they lie in the file."""
    checkpoint = open_checkpoint(path)
    try:
        return sum(info.n_bytes for info in checkpoint.tensors.values())
    finally:
        checkpoint.close()


def slot_bytes(spec: ModelSpec, kv_cache_dtype: str) -> int:
    """Bytes of one token's keys and values over all layers; int8 has a float32 scale per head."""
    head = int(spec.head_dim * BYTES[kv_cache_dtype]) + (4 if kv_cache_dtype == "int8" else 0)
    return 2 * spec.n_layers * spec.n_kv_heads * head


def matrix_bytes_per_token(path: Path, form: str) -> int:
    """Bytes of weights that an iteration of one token must read: all but those of an embedding that is no head, and of
    experts that it does not choose."""
    spec = model_spec(path)
    unread = 0 if spec.tied else spec.vocab_size * spec.hidden_size
    n_idle = sum(spec.has_experts(i) for i in range(spec.n_layers)) * (spec.n_experts - spec.n_chosen)
    unread += n_idle * (3 if spec.gated else 2) * spec.hidden_size * spec.expert_size
    return weight_bytes(path, form) - round(unread * BYTES[form])


def operations_per_token(spec: ModelSpec) -> int:
    """Multiplications and additions of one token in the matrices of all layers and the head (attention not counted)."""
    qkv = spec.hidden_size * (spec.q_size + 2 * spec.n_kv_heads * spec.head_dim)
    n_mixed = sum(spec.has_experts(i) for i in range(spec.n_layers))
    columns = (spec.n_layers - n_mixed) * spec.intermediate_size + n_mixed * spec.n_chosen * spec.expert_size
    mlps = spec.hidden_size * ((3 if spec.gated else 2) * columns + n_mixed * spec.n_experts)
    attention = qkv + spec.q_size * spec.hidden_size
    return 2 * (spec.n_layers * attention + mlps + spec.vocab_size * spec.hidden_size)


def _bytes(info: TensorInfo, form: str) -> float:
    if len(info.shape) < 2:  # norms and biases stay float32
        return 4.0 * prod(info.shape)
    finer = form == "int4" and info.kind not in FULL_KINDS | INT4_KINDS  # the file has more than four bits: int8
    return BYTES["int8" if finer else form] * prod(info.shape)
