"""KVRegion: keys and values of all pages, in the order in which the kernels read them (csrc/model.h)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orcaserve.model.spec import ModelSpec
from orcaserve.native import _kernels
from orcaserve.native.huge_pages import allocate

STORAGES = {"float32": 0, "bfloat16": 1, "int8": 2}
PAGE_SIZE_STEP = 16  # page sizes are multiples of it
_ITEMS: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(np.uint16),
    "int8": np.dtype(np.uint8),
}


def slot_bytes(spec: ModelSpec, storage: str) -> int:
    """Bytes of one slot: the key and the value of one token over all layers, with their scales."""
    per_head = spec.head_dim * _ITEMS[storage].itemsize + (4 if storage == "int8" else 0)
    return 2 * spec.n_layers * spec.n_kv_heads * per_head


class KVRegion:
    """Keys [layers, pages, kv heads, head_dim, page_size], values [layers, pages, kv heads, page_size, head_dim].

    storage: one of STORAGES. bfloat16 numbers are seen as uint16. int8: keys [..., head_dim / 4, page_size, 4], values
    [..., page_size / 4, head_dim, 4], and one float32 scale per token and head of each, [layers, pages, kv heads,
    page_size]. Memory is committed when it is first written, so an idle region costs address space only.
    """

    def __init__(self, spec: ModelSpec, n_pages: int, page_size: int, storage: str) -> None:
        if page_size % PAGE_SIZE_STEP or spec.head_dim % 4:
            raise ValueError(f"the kernels need pages of a multiple of {PAGE_SIZE_STEP} slots and heads of one of 4")
        self.storage = storage
        item, outer, dim = _ITEMS[storage], (spec.n_layers, n_pages, spec.n_kv_heads), spec.head_dim
        self.key_scales: NDArray[np.float32] | None = None
        self.value_scales: NDArray[np.float32] | None = None
        if storage == "int8":
            self.keys = _memory((*outer, dim // 4, page_size, 4), item)
            self.values = _memory((*outer, page_size // 4, dim, 4), item)
            self.key_scales = _memory((*outer, page_size), np.dtype(np.float32))
            self.value_scales = _memory((*outer, page_size), np.dtype(np.float32))
        else:
            self.keys = _memory((*outer, dim, page_size), item)
            self.values = _memory((*outer, page_size, dim), item)
        self.page_size = page_size
        self.native = _kernels.KVRegion(
            STORAGES[storage], page_size, n_pages, self.keys, self.values, self.key_scales, self.value_scales
        )

    def copy_page(self, source: int, target: int) -> None:
        """All of a page to another one, in all layers: what a request wants of it, and what nobody will look at."""
        for array in (self.keys, self.values, self.key_scales, self.value_scales):
            if array is not None:
                array[:, target] = array[:, source]


def _memory(shape: tuple[int, ...], item: np.dtype[Any]) -> NDArray[Any]:
    n_bytes = math.prod(shape) * item.itemsize
    memory: NDArray[Any] = allocate(1, n_bytes)[0].view(item)
    return memory.reshape(shape)
