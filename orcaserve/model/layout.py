"""Layout: how the requests of an iteration lie in its flat [sum of L, hidden] tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Request r owns rows starts[r] .. starts[r+1] of every flat tensor; its page table says where its K/V lies.

    starts: [R + 1] int32, contexts: [R] int32 (tokens whose K/V the request had before this iteration),
    page_tables: [R, most pages] int32, padded with -1; these three on the CPU.
    positions: [N] int64, token index of every row; last_rows: [R] int64, the row of every request's last token; these
    two on the model's device.
    """

    starts: Tensor
    contexts: Tensor
    page_tables: Tensor
    positions: Tensor
    last_rows: Tensor

    @classmethod
    def build(
        cls,
        pieces: Sequence[tuple[int, int]],
        page_tables: Tensor,
        page_size: int,
        device: torch.device | str = "cpu",
    ) -> Layout:
        """pieces: per request (tokens of this iteration, tokens before it). ValueError if sizes disagree."""
        if not pieces:
            raise ValueError("a layout holds at least one request")
        if page_tables.dtype != torch.int32 or page_tables.dim() != 2 or page_tables.shape[0] != len(pieces):
            raise ValueError(f"page_tables must be int32 of [{len(pieces)}, pages], is {_describe(page_tables)}")
        lengths, contexts = np.array(pieces, dtype=np.int64).T
        if lengths.min() < 1 or contexts.min() < 0:
            raise ValueError("every request has at least one token, and no fewer than 0 before it")
        totals = lengths + contexts
        _check_tables(page_tables.numpy(), -(-totals // page_size))
        starts = np.zeros(len(pieces) + 1, dtype=np.int64)
        np.cumsum(lengths, out=starts[1:])
        # Row i of request r has position contexts[r] + i - starts[r].
        positions = np.arange(starts[-1]) + np.repeat(contexts - starts[:-1], lengths)
        return cls(
            starts=torch.from_numpy(starts.astype(np.int32)),
            contexts=torch.from_numpy(contexts.astype(np.int32)),
            page_tables=page_tables.contiguous(),
            positions=torch.from_numpy(positions).to(device),
            last_rows=torch.from_numpy(starts[1:] - 1).to(device),
        )

    @property
    def n_requests(self) -> int:
        return self.contexts.shape[0]

    @property
    def n_tokens(self) -> int:
        return int(self.starts[-1])

    def split(self, x: Tensor) -> list[Tensor]:
        """[N, ...] -> one [L_r, ...] view per request."""
        if x.shape[0] != self.n_tokens:
            raise ValueError(f"the layout has {self.n_tokens} rows, the tensor {x.shape[0]}")
        return list(torch.tensor_split(x, self.starts[1:-1].tolist()))

    def merge(self, parts: Sequence[Tensor]) -> Tensor:
        """One [L_r, ...] per request -> [N, ...]: the inverse of split."""
        lengths = self.starts.diff().tolist()
        if [part.shape[0] for part in parts] != lengths:
            raise ValueError(f"the layout has requests of {lengths} rows, the parts {[p.shape[0] for p in parts]}")
        return torch.cat(list(parts))


def _check_tables(tables: np.ndarray[tuple[int, int], np.dtype[np.int32]], needed: np.ndarray) -> None:
    """Every request has as many pages as its tokens fill."""
    width = tables.shape[1]
    if needed.max() > width or np.any((tables < 0) & (np.arange(width) < needed[:, None])):
        raise ValueError("a request's page table is shorter than its tokens")


def _describe(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} of {list(x.shape)}"
