"""Attention of all requests of an iteration, each over its own keys and values: a native call, or plain PyTorch."""

from __future__ import annotations

import math
import warnings
from typing import Protocol

import torch
from torch import Tensor

from orcaserve.model.kv_manager import KVManager
from orcaserve.model.layout import Layout


class Attention(Protocol):
    """The one operator that knows borders between requests."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layer: int, layout: Layout, kv: KVManager) -> Tensor:
        """q [N, heads, D], k and v [N, kv heads, D] -> [N, heads * D] of q's dtype.

        Stores k and v as the newest tokens of their requests in `kv`, then every token attends to the tokens of its
        request up to itself. Query head h reads K/V head h // (heads / kv heads). Raises TypeError or ValueError if an
        argument has the wrong dtype, device or shape.
        """


class ReferenceAttention:
    """Split, attend request by request, merge: written to be read, on any device. The oracle of the native one.

    scale: factor of the scores; None = 1 / sqrt(D).
    """

    def __init__(self, scale: float | None = None) -> None:
        self._scale = scale

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layer: int, layout: Layout, kv: KVManager) -> Tensor:
        _check(q, k, v, layout, kv)
        scale = _default_scale(kv) if self._scale is None else self._scale
        parts = zip(layout.split(q), layout.split(k), layout.split(v), strict=True)
        outputs = []
        for r, (query, key, value) in enumerate(parts):
            context, table = int(layout.contexts[r]), layout.page_tables[r]
            kv.write(layer, table, context, key, value)
            outputs.append(_attend(query, *kv.read(layer, table, context + len(key)), context, scale))
        return layout.merge(outputs).flatten(1)


class NativeAttention:
    """One call into the CPU kernels for all requests. Raises ImportError where they are not built.

    A token's result is the same to the bit whatever else is in the batch, for any number of threads, and whether its
    prompt came whole or in pieces. scale: factor of the scores; None = 1 / sqrt(D). Not thread-safe.
    """

    def __init__(self, scale: float | None = None) -> None:
        from orcaserve import native

        self._plan_type = native.AttentionPlan
        self._scale = scale
        self._layout: Layout | None = None  # the iteration that _plan is for: its other layers use the plan again
        self._kv: KVManager | None = None
        self._n_heads = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layer: int, layout: Layout, kv: KVManager) -> Tensor:
        n_tokens, n_heads, head_dim = _check(q, k, v, layout, kv)
        if layout is not self._layout or kv is not self._kv or n_heads != self._n_heads:
            self._make_plan(layout, kv, n_heads)
        dtype = q.dtype
        q, k, v = _rows(q), _rows(k), _rows(v)
        out = torch.empty(n_tokens, n_heads * head_dim)
        self._plan.run(
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            q.stride(0),
            k.stride(0),
            v.stride(0),
            kv.keys[layer].data_ptr(),
            kv.values[layer].data_ptr(),
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out if dtype is torch.float32 else out.to(dtype)

    def _make_plan(self, layout: Layout, kv: KVManager, n_heads: int) -> None:
        if kv.device.type != "cpu":
            raise ValueError(f"native attention runs on the CPU, the K/V is on {kv.device}")
        self._plan = self._plan_type(
            layout.starts.numpy(),
            layout.contexts.numpy(),
            layout.page_tables.numpy(),
            kv.n_pages,
            n_heads,
            kv.n_kv_heads,
            kv.head_dim,
            kv.page_size,
            _default_scale(kv) if self._scale is None else self._scale,
            kv.dtype is torch.bfloat16,
        )
        self._layout, self._kv, self._n_heads = layout, kv, n_heads


def choose_attention(device: torch.device | str, scale: float | None = None) -> Attention:
    """The native one on a CPU for which it is built, else the reference. A wrong ORCASERVE_ISA raises ConfigError."""
    if torch.device(device).type != "cpu":
        return ReferenceAttention(scale)
    try:
        return NativeAttention(scale)
    except ImportError as error:
        warnings.warn(f"slow attention in plain PyTorch: {error}", RuntimeWarning, stacklevel=2)
        return ReferenceAttention(scale)


def _default_scale(kv: KVManager) -> float:
    return 1 / math.sqrt(kv.head_dim)


def _attend(query: Tensor, keys: Tensor, values: Tensor, context: int, scale: float) -> Tensor:
    """One request: query [n, heads, D] over keys, values [context + n, kv heads, D] -> [n, heads, D]; in float32."""
    group = query.shape[1] // keys.shape[1]
    keys = keys.float().repeat_interleave(group, dim=1)
    values = values.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("nhd,thd->hnt", query.float() * scale, keys)
    seen = torch.ones(scores.shape[1:], dtype=torch.bool, device=query.device).tril(context)
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
    return torch.einsum("hnt,thd->nhd", weights, values).to(query.dtype)


def _check(q: Tensor, k: Tensor, v: Tensor, layout: Layout, kv: KVManager) -> tuple[int, int, int]:
    """The sizes (tokens, heads, D), once every argument fits the others."""
    n_tokens, n_heads, head_dim = q.shape if q.dim() == 3 else (0, 0, 0)
    rows = layout.positions.shape[0]
    if n_tokens != rows or head_dim != kv.head_dim or n_heads < 1 or n_heads % kv.n_kv_heads:
        raise ValueError(f"q must be [{rows}, multiple of {kv.n_kv_heads}, {kv.head_dim}], is {list(q.shape)}")
    expected = (rows, kv.n_kv_heads, head_dim)
    if k.shape != expected or v.shape != expected:
        raise ValueError(f"k and v must be {list(expected)}, are {list(k.shape)} and {list(v.shape)}")
    if q.dtype is not k.dtype or q.dtype is not v.dtype or q.dtype not in (torch.float32, torch.bfloat16):
        raise TypeError(f"q, k, v must all be float32 or all bfloat16, are {q.dtype}, {k.dtype}, {v.dtype}")
    if q.device != kv.device or k.device != kv.device or v.device != kv.device:
        raise ValueError(f"q, k, v are on {q.device}, {k.device}, {v.device}, the K/V on {kv.device}")
    return n_tokens, n_heads, head_dim


def _rows(x: Tensor) -> Tensor:
    """float32 with heads and dimensions adjacent; rows may lie apart, as in a slice of a fused q, k, v matrix."""
    if x.dtype is not torch.float32:
        x = x.float()
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
