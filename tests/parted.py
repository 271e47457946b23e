"""A model cut in parts, run in one process. Imported by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Barrier
from typing import Any

import torch
from torch import Tensor

from orcaserve.model.kv_manager import KVManager
from orcaserve.model.layout import Layout
from orcaserve.model.loader import ModelFiles
from orcaserve.model.part import Part
from orcaserve.model.reference.builder import load_reference, load_reference_part
from orcaserve.model.reference.kv_region import KVRegion
from orcaserve.model.reference.transformer import Transformer

BATCHES: list[list[tuple[int, list[int]]]] = [
    [(0, list(range(1, 40))), (1, [7, 8, 9])],
    [(0, [5]), (1, [6, 7]), (2, [100, 101, 102])],
    [(2, [3]), (0, [4]), (1, [5])],
]
CPU = torch.device("cpu")


class Shards:
    """Sums a tensor over threads, in the order of the shards."""

    def __init__(self, n: int) -> None:
        self._barrier, self._tensors = Barrier(n), [torch.empty(0)] * n

    def all_reduce(self, shard: int, x: Tensor) -> None:
        self._tensors[shard] = x
        self._barrier.wait(20)
        total = torch.stack(self._tensors).sum(0)
        self._barrier.wait(20)
        x.copy_(total)


class OneStack:
    """How a model that is a decoder is cut."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with ModelFiles(path) as files:
            self._spec = files.spec
        self.n_layers = self._spec.n_layers

    def part(self, layers: range, shard: int, n_shards: int) -> Part:
        return Part(self._spec, layers, shard, n_shards)

    def load(self, part: Part, reduce: Callable[[Tensor], None] | None) -> Transformer:
        return load_reference_part(self._path, part, torch.float32, CPU, reduce)


class Partitioned:
    """Stages of shards in one process, every shard with a thread of its own."""

    def __init__(
        self,
        path: Path,
        splits: Sequence[int],
        n_shards: int,
        way: Callable[[Path], Any] = OneStack,
        page_size: int = 16,
    ) -> None:
        """splits: the first layers of all stages but the first."""
        self.pages = KVManager(2048, page_size)
        self.stages = []
        cut = way(path)
        for begin, end in pairwise([0, *splits, cut.n_layers]):
            sums, stage = Shards(n_shards), []
            for shard in range(n_shards):
                part = cut.part(range(begin, end), shard, n_shards)
                reduce = None if n_shards == 1 else lambda x, sums=sums, shard=shard: sums.all_reduce(shard, x)
                model = cut.load(part, reduce)
                stage.append((model, KVRegion(part.own_spec, self.pages.n_pages, page_size)))
            self.stages.append(stage)

    def step(self, batch: list[tuple[int, list[int]]]) -> Tensor:
        layout = self.pages.lay_out([(request, len(tokens)) for request, tokens in batch])
        return self.forward(torch.tensor([t for _, tokens in batch for t in tokens]), layout)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Token ids -> logits."""
        for stage in self.stages:
            with ThreadPoolExecutor(len(stage)) as pool:
                results = list(pool.map(lambda shard, x=x: shard[0].forward(x, layout, shard[1]), stage))
            x = results[0]
            if stage is not self.stages[-1]:
                assert all(torch.equal(result, x) for result in results)
        return torch.cat(results, dim=1)


def whole(path: Path) -> list[Tensor]:
    model, pages = load_reference(path), KVManager(2048, 16)
    region = KVRegion(model.spec, pages.n_pages, 16)
    return [
        model.forward(
            torch.tensor([t for _, tokens in batch for t in tokens]),
            pages.lay_out([(request, len(tokens)) for request, tokens in batch]),
            region,
        )
        for batch in BATCHES
    ]
