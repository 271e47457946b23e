"""A model cut in parts, run in one process. Imported by name."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Barrier

import torch
from torch import Tensor

from orcaserve.model.kv_manager import KVManager
from orcaserve.model.loader import ModelFiles
from orcaserve.model.part import Part
from orcaserve.model.reference.builder import load_reference, load_reference_part
from orcaserve.model.reference.kv_region import KVRegion

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


class Partitioned:
    """Stages of shards in one process, every shard with a thread of its own."""

    def __init__(self, path: Path, splits: Sequence[int], n_shards: int) -> None:
        with ModelFiles(path) as files:
            spec = files.spec
        self.pages = KVManager(2048, 16)
        self.stages = []
        for begin, end in pairwise([0, *splits, spec.n_layers]):
            sums, stage = Shards(n_shards), []
            for shard in range(n_shards):
                part = Part(spec, range(begin, end), shard, n_shards)
                reduce = None if n_shards == 1 else lambda x, sums=sums, shard=shard: sums.all_reduce(shard, x)
                model = load_reference_part(path, part, torch.float32, CPU, reduce)
                stage.append((model, KVRegion(part.own_spec, self.pages.n_pages, 16)))
            self.stages.append(stage)

    def step(self, batch: list[tuple[int, list[int]]]) -> Tensor:
        layout = self.pages.lay_out([(request, len(tokens)) for request, tokens in batch])
        x = torch.tensor([t for _, tokens in batch for t in tokens])
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
