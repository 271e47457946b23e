"""FilledHeads: a checkpoint whose heads are filled up with zeros, for kernels that take several dimensions at once.

    files:     queries, keys, values [heads * 6, n]        output projection [n, heads * 6]
    as seen:                         [heads * 8, n]                          [n, heads * 8]

Nothing that is computed changes: a score has zeros more in its sum, and what attention gives has zeros more, which the
output projection multiplies by zeros. The scale of the scores stays that of the files' heads, and positions turn the
same dimensions. A norm of queries or keys has more numbers to take the mean square of, though, so that their rows are
larger and the norm's weights smaller by the root of that.

In every family, stacked or not, a head's rows are neighbours, and so are its inputs of the output projection. So a
tensor is one run of dimensions after the other, whatever is of which head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from orcaserve.checkpoint.checkpoint import Checkpoint
from orcaserve.checkpoint.tensor_info import TensorInfo
from orcaserve.model.families import Names
from orcaserve.model.spec import ModelSpec

Floats = NDArray[np.float32]
HEAD_UNIT = 4  # dimensions of a head that the CPU's kernels take at once
KIND = "F32"  # of the tensors that are filled up, whatever the files have


def fill_heads(checkpoint: Checkpoint, spec: ModelSpec, names: Names, unit: int) -> tuple[Checkpoint, ModelSpec]:
    """Both with heads of a multiple of `unit` dimensions; as they are where they have that, or cannot be filled up."""
    size = -(-spec.head_dim // unit) * unit
    # The mean that LayerNorm takes off would be another, and what is stacked is not told apart.
    normed = spec.qk_norm is not None and (spec.norm == "layer" or len(names.qkv) == 1)
    if size == spec.head_dim or normed:
        return checkpoint, spec
    filled = replace(spec, head_dim=size, stored_head_dim=spec.head_dim, attention_scale=spec.score_scale)
    return FilledHeads(checkpoint, filled, names), filled


@dataclass(frozen=True, slots=True)
class _Filling:
    """axis: along which heads lie. times: what the numbers are multiplied by, and offset: what a norm adds to them."""

    axis: int
    times: float = 1.0
    offset: float = 0.0


class FilledHeads:
    """A checkpoint. It owns the one that it is seen through. Attributes as in `Checkpoint`.

    spec: with heads filled up from stored_head_dim to head_dim.
    """

    def __init__(self, checkpoint: Checkpoint, spec: ModelSpec, names: Names) -> None:
        assert spec.stored_head_dim is not None
        self._checkpoint, self._dim, self._filled_dim = checkpoint, spec.stored_head_dim, spec.head_dim
        known = _fillings(spec, names)
        self._fillings: dict[str, _Filling] = {}
        self.tensors: dict[str, TensorInfo] = dict(checkpoint.tensors)
        for name, info in checkpoint.tensors.items():
            filling = known.get(name.removeprefix(names.prefix))
            # Whatever is of another size the loader complains of.
            if filling and filling.axis < len(info.shape) and info.shape[filling.axis] % self._dim == 0:
                shape = list(info.shape)
                shape[filling.axis] = shape[filling.axis] // self._dim * self._filled_dim
                self._fillings[name] = filling
                self.tensors[name] = TensorInfo(name, tuple(shape), KIND, 0, 4 * math.prod(shape))

    @property
    def path(self) -> Path:
        return self._checkpoint.path

    @property
    def format(self) -> Literal["gguf", "safetensors"]:
        return self._checkpoint.format

    @property
    def config(self) -> Mapping[str, Any]:
        return self._checkpoint.config

    @property
    def generation_config(self) -> Mapping[str, Any]:
        return self._checkpoint.generation_config

    @property
    def tokenizer_eos_ids(self) -> list[int]:
        return self._checkpoint.tokenizer_eos_ids

    def read(self, name: str, out: Floats | None = None) -> Floats:
        filling = self._fillings.get(name)
        if filling is None:
            return self._checkpoint.read(name, out)
        if out is None:
            out = np.empty(self.tensors[name].shape, np.float32)
        stored = self._checkpoint.read(name)
        if filling.times != 1:
            stored = (stored + np.float32(filling.offset)) * np.float32(filling.times) - np.float32(filling.offset)
        before, after = stored.shape[: filling.axis], stored.shape[filling.axis + 1 :]
        heads = out.reshape(*before, -1, self._filled_dim, *after)
        at = (slice(None),) * (filling.axis + 1)
        heads[(*at, slice(self._dim))] = stored.reshape(*before, -1, self._dim, *after)
        heads[(*at, slice(self._dim, None))] = 0
        return out

    def stored(self, name: str, rows: Sequence[range] | None = None) -> NDArray[np.uint8]:
        if name not in self._fillings:
            return self._checkpoint.stored(name, rows)
        whole = self.read(name)
        chosen = whole if rows is None else np.concatenate([whole[run.start : run.stop] for run in rows])
        return chosen.reshape(len(chosen), -1).view(np.uint8)

    def close(self) -> None:
        self._checkpoint.close()


def _fillings(spec: ModelSpec, names: Names) -> dict[str, _Filling]:
    """Of a model's tensors, by their names without the prefix."""
    assert spec.stored_head_dim is not None
    larger = math.sqrt(spec.head_dim / spec.stored_head_dim) if spec.qk_norm else 1.0
    fillings = {}
    for i in range(spec.n_layers):
        start = names.layer.format(i=i)
        for part, name in enumerate(names.qkv):
            times = larger if part < 2 else 1.0  # values have no norm
            fillings[f"{start}{name}.weight"] = _Filling(1 if names.transposed else 0, times)
            fillings[f"{start}{name}.bias"] = _Filling(0, times)
        fillings[f"{start}{names.out}.weight"] = _Filling(0 if names.transposed else 1)
        if spec.qk_norm:
            for name in (names.q_norm, names.k_norm):
                fillings[f"{start}{name}.weight"] = _Filling(0, 1 / larger, names.norm_offset)
    return fillings
