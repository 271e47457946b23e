"""Attention alone, without the rest of a layer: for tests and benchmarks. The model runs it inside its own call."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orcaserve.native import _kernels
from orcaserve.native.kv_region import STORAGES, KVRegion

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

PART_KEYS: int = _kernels.attention.PART_KEYS  # keys of a part of a long context, csrc/attention.h
BLOCK_ROWS: int = _kernels.attention.BLOCK_ROWS  # most query rows of a block


@dataclass(frozen=True)
class Layout:
    """Request r owns rows starts[r] .. starts[r + 1] and has contexts[r] earlier tokens in the pages tables[r]."""

    starts: Ints  # [requests + 1]
    contexts: Ints  # [requests]
    tables: Ints  # [requests, most pages]
    shares: bool = False  # some request reads pages that another one fills


@dataclass(frozen=True)
class Rope:
    """Rotary positions: dimension i pairs with i + dim / 2 and turns by position * frequencies[set, i]."""

    dim: int
    frequencies: Floats  # [sets, dim / 2]
    amplitude: float = 1.0
    frequency_set: Ints | None = None  # [requests]; None: set 0


NO_ROPE = Rope(0, np.empty((0, 0), np.float32))


def attend(
    qkv: Floats,
    kv: KVRegion,
    layout: Layout,
    team: _kernels.Team,
    *,
    scale: float | None = None,
    rope: Rope = NO_ROPE,
    first_layer: int = 0,
    n_layers: int = 1,
    cut_for: int = 0,
    window: int = 0,
    softcap: float = 0.0,
    alibi: Floats | None = None,
) -> Floats:
    """Appends k and v to the pages of some layers and attends in each; returns what the last one gives.

    qkv: [tokens, (heads + 2 kv heads) * head_dim], q, k and v side by side, the same for every layer. The result is
    [tokens, heads * head_dim]. scale: of the scores, 1 / sqrt(head_dim) by default. cut_for: threads that the work is
    cut for; 0: as many as the team has. window, softcap, alibi: as in ModelSpec. Raises ValueError for a layout that
    would read or write elsewhere.
    """
    head_dim = kv.values.shape[-2 if kv.storage == "int8" else -1]
    page_size = kv.keys.shape[-2 if kv.storage == "int8" else -1]
    out = np.empty((qkv.shape[0], qkv.shape[1] - 2 * kv.keys.shape[2] * head_dim), np.float32)
    _kernels.attention.attend(
        team,
        qkv,
        out,
        head_dim,
        1 / math.sqrt(head_dim) if scale is None else scale,
        STORAGES[kv.storage],
        page_size,
        kv.keys,
        kv.values,
        kv.key_scales,
        kv.value_scales,
        first_layer,
        n_layers,
        layout.starts,
        layout.contexts,
        layout.tables,
        rope.dim,
        rope.amplitude,
        rope.frequencies if rope.dim else None,
        rope.frequency_set,
        cut_for,
        layout.shares,
        window,
        softcap,
        alibi,
    )
    return out
