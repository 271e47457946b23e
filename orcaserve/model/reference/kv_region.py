"""KVRegion: keys and values of all pages, as PyTorch tensors."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from orcaserve.model.layout import Int32s

STORAGE = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class SlotSizes(Protocol):
    """What a slot holds: of every layer key and value of one token. A model's spec says it."""

    @property
    def n_layers(self) -> int: ...
    @property
    def n_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


class KVRegion:
    """keys[layer], values[layer]: [pages, page_size, kv heads, head_dim].

    dtype: one of STORAGE.
    """

    def __init__(
        self, spec: SlotSizes, n_pages: int, page_size: int, dtype: str = "float32", device: torch.device | str = "cpu"
    ) -> None:
        shape = (spec.n_layers, n_pages, page_size, spec.n_kv_heads, spec.head_dim)
        self.page_size = page_size
        self.dtype = STORAGE[dtype]
        self.keys = torch.empty(shape, dtype=self.dtype, device=device)
        self.values = torch.empty(shape, dtype=self.dtype, device=device)

    def write(self, layer: int, page_table: Int32s, start: int, k: Tensor, v: Tensor) -> None:
        """Store k, v [n, kv heads, head_dim] as tokens start .. start + n of the request with this page table."""
        page, slot = self._locate(page_table, start, start + len(k))
        self.keys[layer, page, slot] = k.to(self.dtype)
        self.values[layer, page, slot] = v.to(self.dtype)

    def read(self, layer: int, page_table: Int32s, end: int, start: int = 0) -> tuple[Tensor, Tensor]:
        """Keys and values of the tokens start .. end of a request: two of [end - start, kv heads, head_dim]."""
        page, slot = self._locate(page_table, start, end)
        return self.keys[layer, page, slot], self.values[layer, page, slot]

    def copy_page(self, source: int, target: int) -> None:
        """All of a page to another one, in all layers: what a request wants of it, and what nobody will look at."""
        self.keys[:, target] = self.keys[:, source]
        self.values[:, target] = self.values[:, source]

    def _locate(self, page_table: Int32s, start: int, end: int) -> tuple[Tensor, Tensor]:
        tokens = torch.arange(start, end)
        page = torch.from_numpy(page_table)[tokens // self.page_size].long()
        return page.to(self.keys.device), (tokens % self.page_size).to(self.keys.device)
