"""Experts in GGUF: one tensor holds a matrix of all experts of a layer. Seen from here each expert has its own.

`blk.0.ffn_gate_exps.weight` [experts, rows, width] becomes `blk.0.ffn_gate.{e}.weight` [rows, width], as older files
have them, with the places of their bytes in the file. In `ffn_gate_up_exps` the gate's rows come first, then up's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from orcaserve.checkpoint.tensor_info import TensorInfo
from orcaserve.core.errors import CheckpointError

_STACKED = re.compile(r"(.*\.ffn)_(gate|up|down|gate_up)_exps\.(weight|bias)")


def experts_apart(tensors: Iterable[TensorInfo], file: str) -> dict[str, TensorInfo]:
    """All tensors by name. Raises CheckpointError if a file has an expert in both ways."""
    apart: dict[str, TensorInfo] = {}
    for info in tensors:
        for each in _experts_of(info):
            if each.name in apart:
                raise CheckpointError(f"{file}: tensor {each.name} occurs twice, by itself and among all experts'")
            apart[each.name] = each
    return apart


def _experts_of(info: TensorInfo) -> Iterator[TensorInfo]:
    """The tensor itself, if it is none of all experts."""
    stacked = _STACKED.fullmatch(info.name)
    parts = stacked[2].split("_") if stacked else []
    if stacked is None or len(info.shape) < 2 or info.shape[1] % len(parts):
        yield info
        return
    shape = (info.shape[1] // len(parts), *info.shape[2:])
    n_bytes = info.n_bytes // (info.shape[0] * len(parts))
    names = [f"{stacked[1]}_{part}.{e}.{stacked[3]}" for e in range(info.shape[0]) for part in parts]
    for i, name in enumerate(names):
        yield replace(info, name=name, shape=shape, offset=info.offset + i * n_bytes, n_bytes=n_bytes)
