"""A model that is cut, as a Subject (accuracy_subject.py): its workers are threads, which load and compute their parts
as worker processes do."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from accuracy_measures import Floats
from accuracy_subject import Subject

from orcaserve.config import PAGE_SIZE, EngineConfig, ModelConfig, ParallelConfig
from orcaserve.data_plane.protocol import Place
from orcaserve.model.kv_manager import KVManager
from orcaserve.model.layout import Int32s, Layout
from orcaserve.native import _kernels
from orcaserve.native.kv_region import KVRegion
from orcaserve.native.model import NativeModel
from orcaserve.worker.part_weights import begin_loading
from orcaserve.worker.plan import Plan, read_plan


class _Meeting:
    """What all threads of a cut model share."""

    def __init__(self, n_stages: int, n_shards: int) -> None:
        self.queues: dict[tuple[int, int], SimpleQueue[Floats]] = {}
        self.barriers = [threading.Barrier(n_shards) for _ in range(n_stages)]
        self.sums: list[list[Any]] = [[None] * n_shards for _ in range(n_stages)]


class _Plane:
    """What of a DataPlane is used here."""

    def __init__(self, meeting: _Meeting, place: Place) -> None:
        self._meeting, self._place = meeting, place

    def send_to(self, rank: int, rows: Floats) -> None:
        self._meeting.queues.setdefault((self._place.rank, rank), SimpleQueue()).put(rows.copy())

    def receive_from(self, rank: int, n_rows: int, width: int) -> Floats:
        rows = self._meeting.queues.setdefault((rank, self._place.rank), SimpleQueue()).get()
        assert rows.shape == (n_rows, width)
        return rows

    def all_reduce(self, x: Floats, n_next: int) -> None:
        """In the order of the shards."""
        stage = self._place.stage
        arrays, barrier = self._meeting.sums[stage], self._meeting.barriers[stage]
        arrays[self._place.shard] = x
        barrier.wait()
        total = arrays[0].copy()
        for other in arrays[1:]:
            total += other
        barrier.wait()
        x[:] = total


class _Worker:
    def __init__(self, config: EngineConfig, plan: Plan, place: Place, meeting: _Meeting, n_pages: int) -> None:
        team, part, plane = _kernels.Team(1), plan.part(place), _Plane(meeting, place)
        loading = begin_loading(config.model, plan, place, team, 1)
        weights = loading.finish(plane)  # type: ignore[arg-type]
        self.model = NativeModel(plan.spec, weights, team, part, plane.all_reduce if part.n_shards > 1 else None)
        self.kv = KVRegion(part.own_spec, n_pages, PAGE_SIZE, loading.precision.kv)


def load_cut_subject(path: Path, quantization: str, p: int, t: int, n_tokens: int) -> Subject:
    """With room for the K/V of n_tokens tokens."""
    config = EngineConfig(ModelConfig(path, "cut", quantization=quantization), parallel=ParallelConfig(p, t))  # type: ignore[arg-type]
    plan, meeting, kv = read_plan(config), _Meeting(p, t), KVManager(n_tokens, PAGE_SIZE)
    pool = ThreadPoolExecutor(p * t)
    workers = list(pool.map(lambda place: _Worker(config, plan, place, meeting, kv.n_pages), plan.places))

    def forward(ids: Int32s, layout: Layout, rows: Int32s | None) -> Floats:
        inputs: list[Any] = [ids] * t
        for stage in range(p):

            def run(shard: int, stage: int = stage, inputs: list[Any] = inputs) -> Floats:
                worker = workers[stage * t + shard]
                return worker.model.forward(inputs[shard], layout, worker.kv, rows).copy()

            inputs = list(pool.map(run, range(t)))
        return np.concatenate(inputs, axis=1)

    return Subject(f"{quantization}, {p} x {t}", kv, forward)
