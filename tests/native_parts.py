"""A model cut in parts for the kernels, run in one process. Imported by name."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from orcaserve.model.kv_manager import KVManager
from orcaserve.model.loader import ModelFiles
from orcaserve.model.parameter import Floats
from orcaserve.model.part import Part
from orcaserve.native._kernels import Team
from orcaserve.native.exact_inputs import build_part, build_weights
from orcaserve.native.kv_region import KVRegion
from orcaserve.native.model import NativeModel
from orcaserve.native.precision import choose_precision

BATCHES: list[list[tuple[int, list[int]]]] = [
    [(0, list(range(1, 40))), (1, [7, 8, 9])],
    [(0, [5]), (1, [6, 7]), (2, [100, 101, 102])],
    [(2, [3]), (0, [4]), (1, [5])],
]


class Shards:
    """Sums an array over threads, in the order of the shards."""

    def __init__(self, n: int) -> None:
        self._barrier, self._arrays = threading.Barrier(n), [np.empty(0, np.float32)] * n
        self._announced = [0] * n
        self.sizes: set[int] = set()

    def all_reduce(self, shard: int, x: Floats, n_next: int) -> None:
        assert self._announced[shard] in (0, x.size), "another size than was announced"
        self._announced[shard] = n_next
        self.sizes.add(x.size)
        self._arrays[shard] = x
        self._barrier.wait(20)
        total = self._arrays[0].copy()
        for other in self._arrays[1:]:
            total += other
        self._barrier.wait(20)
        x[:] = total


class Partitioned:
    """Stages of shards in one process, every shard with a thread of its own."""

    def __init__(
        self, path: Path, splits: Sequence[int], n_shards: int, quantization: str = "none", kv: str = "auto"
    ) -> None:
        with ModelFiles(path) as files:
            spec = files.spec
            precision = choose_precision("float32", quantization, files.matrix_kinds)
            edges = [0, *splits, spec.n_layers]
            self._pages = KVManager(2048, 16)
            self.sums: list[Shards] = []
            self._stages = []
            for begin, end in pairwise(edges):
                sums, stage = Shards(n_shards), []
                self.sums.append(sums)
                for shard in range(n_shards):
                    part, team = Part(spec, range(begin, end), shard, n_shards), Team(1)
                    reduce = (
                        None if n_shards == 1 else lambda x, n, sums=sums, shard=shard: sums.all_reduce(shard, x, n)
                    )
                    model = NativeModel(spec, build_part(files, precision, team, part), team, part, reduce)
                    stage.append((model, KVRegion(part.own_spec, self._pages.n_pages, 16, precision.kv)))
                self._stages.append(stage)

    def step(self, batch: list[tuple[int, list[int]]]) -> Floats:
        layout = self._pages.lay_out([(request, len(tokens)) for request, tokens in batch])
        x: Any = np.array([t for _, tokens in batch for t in tokens], np.int32)
        for stage in self._stages:
            results: list[Any] = [None] * len(stage)

            def work(shard: int, stage: Any = stage, results: Any = results, x: Any = x) -> None:
                model, kv = stage[shard]
                results[shard] = model.forward(x.copy(), layout, kv).copy()

            threads = [threading.Thread(target=work, args=(shard,)) for shard in range(len(stage))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert all(result is not None for result in results)
            if stage is not self._stages[-1]:
                assert all(np.array_equal(result, results[0]) for result in results)
            x = results[0]
        return np.concatenate(results, axis=1)


def whole(path: Path, quantization: str = "none", batches: Sequence[Any] = BATCHES) -> list[Floats]:
    team = Team(2)
    with ModelFiles(path) as files:
        precision = choose_precision("float32", quantization, files.matrix_kinds)
        model = NativeModel(files.spec, build_weights(files, precision, team), team)
    pages = KVManager(2048, 16)
    region = KVRegion(model.spec, pages.n_pages, 16, precision.kv)
    return [
        model.forward(
            np.array([t for _, tokens in batch for t in tokens], np.int32),
            pages.lay_out([(request, len(tokens)) for request, tokens in batch]),
            region,
        ).copy()
        for batch in batches
    ]
