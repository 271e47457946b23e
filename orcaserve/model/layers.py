"""The skeleton's operators on flat [tokens, width] tensors. Each treats every row on its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from orcaserve.checkpoint.dequantise import dequantise

# The names that transformers and GGUF give to activations.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}

PACK_ROWS = 32  # the number of rows that packed weights are laid out for; any other number works too


class Linear:
    """y = x W^T + b, with W [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight: Tensor | None = weight
        self.bias = bias
        self._packed: Tensor | None = None

    def pack(self) -> None:
        """Put the weights into oneDNN's own order, in their place: up to twice as fast below 64 rows.

        With it a row's result is the same to the bit however many rows there are (tests hold it to that).
        """
        assert self.weight is not None
        if can_pack(self.weight):
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, PACK_ROWS)
            self.weight = None

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed is not None:
            out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
            return out
        assert self.weight is not None
        return F.linear(x, self.weight, self.bias)


def can_pack(weight: Tensor) -> bool:
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return has_onednn and weight.device.type == "cpu" and weight.dtype is torch.float32


class Embedding:
    """Rows of a table [rows, width] by number."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def __call__(self, ids: Tensor) -> Tensor:
        """[n] int64 -> [n, width]."""
        return F.embedding(ids, self._weight)


class StoredEmbedding:
    """An Embedding that keeps its rows as the checkpoint stores them and turns each into float32 when it is looked up.

    Where the output head is tied to the embedding, the head's packed weights leave no plain table to look rows up in.
    This takes a quarter of a second table's memory (8-bit kinds), and gives the same numbers.
    """

    def __init__(self, kind: str, rows: NDArray[np.uint8], width: int) -> None:
        self._kind, self._rows, self._width = kind, rows, width

    def __call__(self, ids: Tensor) -> Tensor:
        """[n] int64 -> [n, width] float32."""
        out = np.empty((ids.shape[0], self._width), np.float32)
        dequantise(self._kind, self._rows[ids.numpy()].reshape(-1), out.reshape(-1))
        return torch.from_numpy(out)


class Norm:
    """RMSNorm (no bias) or LayerNorm (bias) over the last dimension."""

    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        self.weight, self.bias, self.eps = weight, bias, eps
        self._shape = (weight.shape[0],)

    def __call__(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return F.rms_norm(x, self._shape, self.weight, self.eps)
        return F.layer_norm(x, self._shape, self.weight, self.bias, self.eps)


class MLP:
    """down(act(up x)), or with a gate down(act(gate x) * up x), where gate and up are one matrix."""

    def __init__(self, up: Linear, down: Linear, activation: str, gated: bool) -> None:
        self.up, self.down, self.gated = up, down, gated
        self._act = ACTIVATIONS[activation]

    def __call__(self, x: Tensor) -> Tensor:
        wide = self.up(x)
        if not self.gated:
            return self.down(self._act(wide))
        gate, up = wide.chunk(2, dim=1)
        return self.down(self._act(gate).mul_(up))
