"""Models of any ModelSpec, with random weights and without files. Imported by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orcaserve.checkpoint.tensor_info import TensorInfo
from orcaserve.model.families import Names
from orcaserve.model.loader import ModelFiles
from orcaserve.model.spec import ModelSpec


class RandomCheckpoint:
    """Every parameter that the spec asks for, by the names of `names_of`, in float32. As orcaserve's `Checkpoint`."""

    format = "safetensors"
    path = None

    def __init__(self, spec: ModelSpec, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self._numbers: dict[str, NDArray[np.float32]] = {}
        for name, shape in _parameters(spec):
            is_norm = "norm" in name and name.endswith("weight")
            noise = rng.standard_normal(shape).astype(np.float32)
            self._numbers[name] = 1 + np.float32(0.2) * noise if is_norm else np.float32(0.15) * noise
        self.tensors = {
            name: TensorInfo(name, array.shape, "F32", 0, array.nbytes) for name, array in self._numbers.items()
        }

    def read(self, name: str, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        numbers = self._numbers[name]
        if out is None:
            return numbers.copy()
        out[...] = numbers
        return out

    def stored(self, name: str, rows: Sequence[range] | None = None) -> NDArray[np.uint8]:
        numbers = self._numbers[name].view(np.uint8).reshape(len(self._numbers[name]), -1)
        return numbers.copy() if rows is None else np.concatenate([numbers[run.start : run.stop] for run in rows])

    def close(self) -> None: ...


def files_of(spec: ModelSpec, seed: int = 0) -> ModelFiles:
    """What would be opened if a checkpoint of this model had files."""
    files: Any = ModelFiles.__new__(ModelFiles)
    files._checkpoint, files.spec, files._names = RandomCheckpoint(spec, seed), spec, names_of(spec)
    files.matrix_kinds = frozenset({"F32"})
    return files


def names_of(spec: ModelSpec) -> Names:
    return Names(
        embedding="embedding",
        positions=None if spec.rope or spec.alibi else "positions",
        layer="layers.{i}.",
        attention_norm="attention_norm",
        qkv=("q", "k", "v"),
        out="out",
        mlp_norm="mlp_norm",
        up=("gate", "up") if spec.gated else ("up",),
        down="down",
        norm="norm",
        head="head",
        post_attention_norm="post_attention_norm",
        post_mlp_norm="post_mlp_norm",
        q_norm="q_norm",
        k_norm="k_norm",
        embedding_norm="embedding_norm",
    )


def _parameters(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, wide = spec.hidden_size, spec.intermediate_size
    per_head = spec.qk_norm == "head"
    yield "embedding.weight", (spec.vocab_size, hidden)
    if not (spec.rope or spec.alibi):
        yield "positions.weight", (spec.context_length, hidden)
    norms = [("norm", hidden, True), ("embedding_norm", hidden, spec.embedding_norm)]
    for i in range(spec.n_layers):
        start = f"layers.{i}."
        norms += [
            (start + "attention_norm", hidden, spec.pre_norm),
            (start + "mlp_norm", hidden, spec.pre_norm and not spec.shared_norm),
            (start + "post_attention_norm", hidden, spec.post_norm),
            (start + "post_mlp_norm", hidden, spec.post_norm),
            (start + "q_norm", spec.head_dim if per_head else spec.q_size, spec.qk_norm is not None),
            (start + "k_norm", spec.head_dim if per_head else spec.kv_size, spec.qk_norm is not None),
        ]
        for name, n_out, n_in, biased in (
            ("q", spec.q_size, hidden, spec.qkv_bias),
            ("k", spec.kv_size, hidden, spec.qkv_bias),
            ("v", spec.kv_size, hidden, spec.qkv_bias),
            ("out", hidden, spec.q_size, spec.out_bias),
            *([("gate", wide, hidden, spec.mlp_bias)] if spec.gated else []),
            ("up", wide, hidden, spec.mlp_bias),
            ("down", hidden, wide, spec.mlp_bias),
        ):
            yield f"{start}{name}.weight", (n_out, n_in)
            if biased:
                yield f"{start}{name}.bias", (n_out,)
    for name, n, is_there in norms:
        if is_there:
            yield f"{name}.weight", (n,)
        if is_there and spec.norm == "layer" and spec.norm_bias:
            yield f"{name}.bias", (n,)
    if not spec.tied:
        yield "head.weight", (spec.vocab_size, hidden)
    if spec.head_bias:
        yield "head.bias", (spec.vocab_size,)
