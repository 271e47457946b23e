"""The Attention K/V manager: keys and values of every request, from its first iteration until it is dropped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orcaserve.model.layout import Layout

STORAGE_DTYPES = (torch.float32, torch.bfloat16)
_NO_PAGES = np.empty(0, dtype=np.int32)


def slot_bytes(n_layers: int, n_kv_heads: int, head_dim: int, dtype: torch.dtype = torch.float32) -> int:
    """Bytes of one slot: the key and the value of one token over all layers."""
    return 2 * n_layers * n_kv_heads * head_dim * dtype.itemsize


class KVManager:
    """A region of n_slots slots, allocated once and handed out in pages.

    A page holds page_size consecutive tokens of one request in every layer. Any page serves any request, so memory is
    never too scattered to use: a request that reserved its tokens, rounded up to whole pages, always gets them. The
    scheduler's ledger keeps the sum of reservations within n_slots; this class only hands out.

    keys[layer]:   [pages, kv heads, head_dim, page_size]   dimension before token, as the kernels read them
    values[layer]: [pages, kv heads, page_size, head_dim]

    The system commits memory when it is first written, so an idle region costs address space only. Not thread-safe: one
    worker's thread owns it.
    """

    def __init__(
        self,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        n_slots: int,
        page_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if min(n_layers, n_kv_heads, head_dim, page_size) < 1:
            raise ValueError("layers, heads, head_dim and page_size must be at least 1")
        if n_slots < page_size:
            raise ValueError(f"n_slots ({n_slots}) is less than one page of {page_size}")
        if dtype not in STORAGE_DTYPES:
            raise ValueError(f"K/V is stored as float32 or bfloat16, not {dtype}")
        self.n_layers = n_layers
        self.n_kv_heads = n_kv_heads
        self.head_dim = head_dim
        self.page_size = page_size
        self.n_pages = n_slots // page_size
        self.dtype = dtype
        self.device = torch.device(device)
        shape = (n_layers, self.n_pages, n_kv_heads)
        keys = torch.empty(*shape, head_dim, page_size, dtype=dtype, device=device)
        values = torch.empty(*shape, page_size, head_dim, dtype=dtype, device=device)
        self.keys: tuple[Tensor, ...] = keys.unbind(0)
        self.values: tuple[Tensor, ...] = values.unbind(0)
        self._free = list(range(self.n_pages - 1, -1, -1))  # a stack: what was just released is still in the cache
        self._pages: dict[int, NDArray[np.int32]] = {}
        self._n_tokens: dict[int, int] = {}

    @property
    def n_free(self) -> int:
        """Pages that nobody owns."""
        return len(self._free)

    @property
    def n_used(self) -> int:
        """Pages that some request owns."""
        return self.n_pages - len(self._free)

    def n_tokens(self, request_id: int) -> int:
        """Tokens the request has room for, all of them written once the iteration has run; 0 for an unknown request."""
        return self._n_tokens.get(request_id, 0)

    def extend(self, request_id: int, n_tokens: int) -> None:
        """Make room for n_tokens more tokens of the request; its first call makes it known."""
        if n_tokens < 1:
            raise ValueError("a request is extended by at least one token")
        total = self.n_tokens(request_id) + n_tokens
        pages = self._pages.get(request_id, _NO_PAGES)
        n_new = -(-total // self.page_size) - len(pages)
        assert n_new <= len(self._free), (
            f"request {request_id} needs {n_new} more pages and {len(self._free)} are free: "
            "it was scheduled without a reservation, or holds more than it reserved"
        )
        if n_new:
            new = [self._free.pop() for _ in range(n_new)]
            self._pages[request_id] = np.concatenate([pages, np.array(new, dtype=np.int32)])
        self._n_tokens[request_id] = total

    def drop(self, request_id: int) -> None:
        """Release everything the request has; of no effect for an unknown request."""
        self._free.extend(self._pages.pop(request_id, _NO_PAGES)[::-1].tolist())
        self._n_tokens.pop(request_id, None)

    def pages(self, request_id: int) -> tuple[int, ...]:
        """The request's pages, in the order of its tokens."""
        return tuple(self._pages.get(request_id, _NO_PAGES).tolist())

    def page_tables(self, request_ids: Sequence[int]) -> Tensor:
        """[requests, most pages of any] int32 on the CPU, padded with -1. KeyError for an unknown request."""
        rows = [self._pages[request_id] for request_id in request_ids]
        tables = np.full((len(rows), max(map(len, rows), default=0)), -1, dtype=np.int32)
        for table, row in zip(tables, rows, strict=True):
            table[: len(row)] = row
        return torch.from_numpy(tables)

    def lay_out(self, entries: Sequence[tuple[int, int]]) -> Layout:
        """entries: per request of an iteration (id, input tokens). Extends each and returns the iteration's layout."""
        pieces = [(n_tokens, self.n_tokens(request_id)) for request_id, n_tokens in entries]
        for request_id, n_tokens in entries:
            self.extend(request_id, n_tokens)
        tables = self.page_tables([request_id for request_id, _ in entries])
        return Layout.build(pieces, tables, self.page_size, self.device)

    def write(self, layer: int, page_table: Tensor, start: int, k: Tensor, v: Tensor) -> None:
        """Store k, v [n, kv heads, head_dim] as tokens start .. start + n of the request with this page table."""
        page, slot = self._locate(page_table, torch.arange(start, start + k.shape[0]))
        self.keys[layer][page, :, :, slot] = k.to(self.dtype)
        self.values[layer][page, :, slot] = v.to(self.dtype)

    def read(self, layer: int, page_table: Tensor, n_tokens: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first n_tokens tokens of a request: two of [n_tokens, kv heads, head_dim]."""
        page, slot = self._locate(page_table, torch.arange(n_tokens))
        return self.keys[layer][page, :, :, slot], self.values[layer][page, :, slot]

    def _locate(self, page_table: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        page = page_table[tokens // self.page_size].long()
        return page.to(self.device), (tokens % self.page_size).to(self.device)
