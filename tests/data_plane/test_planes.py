"""Every data plane gives the same: over real Gloo, through shared memory, and mixed. Their workers are threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from resource import RUSAGE_THREAD, getrusage
from threading import Barrier
from typing import TypeVar

import numpy as np
import pytest

from orcaserve.data_plane import shared_memory
from orcaserve.data_plane.memory import SharedMemory, shared_by
from orcaserve.data_plane.mixed import MixedPlane
from orcaserve.data_plane.protocol import DataPlane, Place
from orcaserve.data_plane.shared_memory import SharedMemoryPlane

T = TypeVar("T")
Work = Callable[[Place, DataPlane], T]
Kind = Callable[[Place, SharedMemory | None, Path], DataPlane]


def gloo(place: Place, memory: SharedMemory | None, folder: Path) -> DataPlane:
    torch_distributed = pytest.importorskip("orcaserve.data_plane.torch_distributed")
    plane: DataPlane = torch_distributed.TorchDataPlane(place, folder / "rendezvous", 30)
    return plane


def shared(place: Place, memory: SharedMemory | None, folder: Path) -> DataPlane:
    assert memory is not None
    return SharedMemoryPlane(place, memory)


def mixed(place: Place, memory: SharedMemory | None, folder: Path) -> DataPlane:
    """The first two workers are on one machine, every other one is on a machine of its own."""
    far = gloo(place, None, folder)
    if memory is None or place.rank > 1:
        return far
    return MixedPlane(place, range(2), SharedMemoryPlane(place, SharedMemory(memory.descriptor, range(2))), far)


@pytest.fixture(params=[gloo, shared, mixed])
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


def on_all(kind: Kind, n_stages: int, n_shards: int, folder: Path, work: Work[T]) -> list[T]:
    places = [Place(stage, shard, n_stages, n_shards) for stage in range(n_stages) for shard in range(n_shards)]
    over = Barrier(len(places))

    def run(place: Place) -> T:
        try:
            plane = kind(place, memory, folder)
            result = work(place, plane)
            over.wait(30)  # what was sent may still be under way, and ends with the one who sent it
            plane.close()
            return result
        except BaseException:
            over.abort()
            raise

    with shared_by(places) as memory, ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(run, places))


@pytest.mark.parametrize("n_shards", [2, 3, 4])
def test_sums_are_the_same_everywhere_and_for_a_row_in_any_company(n_shards: int, kind: Kind, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((n_shards, 40, 96)).astype(np.float32)

    def work(place: Place, plane: DataPlane) -> list[np.ndarray]:
        many, one = rows[place.shard].reshape(-1).copy(), rows[place.shard, 17].copy()
        again = many.copy()
        plane.all_reduce(many, many.size)
        plane.all_reduce(again)
        plane.all_reduce(one)
        assert np.array_equal(again, many)
        return [many.reshape(40, 96), one]

    in_order = rows[0].copy()
    for shard in rows[1:]:
        in_order += shard
    for many, one in on_all(kind, 1, n_shards, tmp_path, work):
        assert np.array_equal(many, in_order)
        assert np.array_equal(one, in_order[17])


def test_columns_side_by_side(kind: Kind, tmp_path: Path) -> None:
    widths = [3, 5, 4]
    whole = np.arange(24, dtype=np.float32).reshape(2, 12)
    edges = np.cumsum([0, *widths])

    def work(place: Place, plane: DataPlane) -> np.ndarray | None:
        return plane.gather(np.ascontiguousarray(whole[:, edges[place.shard] : edges[place.shard + 1]]), widths)

    first, *others = on_all(kind, 1, 3, tmp_path, work)
    assert np.array_equal(first, whole)
    assert others == [None, None]


def test_hidden_states_come_in_order_whoever_is_first(kind: Kind, tmp_path: Path) -> None:
    sizes = [1, 70, 3, 500, 2, 2]

    def work(place: Place, plane: DataPlane) -> list[float]:
        if place.stage == 0:
            for i, n in enumerate(sizes):
                plane.send(np.full((n, 8), i + 10 * place.shard, np.float32))
            return []
        incoming = [plane.receive(n, 8) for n in sizes]
        return [float(np.unique(receive.wait()).item()) for receive in incoming]

    assert on_all(kind, 2, 2, tmp_path, work) == [[], [], [0, 1, 2, 3, 4, 5], [10, 11, 12, 13, 14, 15]]


@pytest.mark.parametrize(("n_stages", "n_shards"), [(3, 1), (2, 2), (1, 3)])
def test_all_roads_of_a_cut_model(n_stages: int, n_shards: int, kind: Kind, tmp_path: Path) -> None:
    """As an iteration uses them, some in a row: whatever neighbours share memory."""
    n_iterations = 20

    def work(place: Place, plane: DataPlane) -> list[float]:
        seen = []
        for i in range(n_iterations):
            rows = np.full((2 + i % 3, 4), 1.0 + i, np.float32)
            if place.stage:
                rows = plane.receive(*rows.shape).wait()
            if n_shards > 1:
                plane.all_reduce(rows.reshape(-1), rows.size)
                plane.all_reduce(rows.reshape(-1))
            if place.stage < n_stages - 1:
                plane.send(rows)
                continue
            logits = plane.gather(rows, [4] * n_shards) if n_shards > 1 else rows
            if logits is not None:
                assert logits.shape == (2 + i % 3, 4 * n_shards)
                seen.append(float(np.unique(logits).item()))
        return seen

    factor = float(n_shards ** (2 * n_stages))
    last = on_all(kind, n_stages, n_shards, tmp_path, work)[(n_stages - 1) * n_shards]
    assert last == [factor * (1 + i) for i in range(n_iterations)]


def test_rows_go_round_from_worker_to_worker(kind: Kind, tmp_path: Path) -> None:
    """Whatever their stages and shards, as while a model is watched; and the sums after that are undisturbed."""

    def work(place: Place, plane: DataPlane) -> list[float]:
        rank, n = place.rank, place.n_ranks
        seen = []
        for lap in range(5):
            if rank == 0:
                plane.send_to(1, np.full((3, 4), lap, np.float32))
            rows = plane.receive_from((rank - 1) % n, 3, 4)
            seen.append(float(rows.mean()))
            if rank:
                plane.send_to((rank + 1) % n, rows + 1)
        x = np.ones(7, np.float32)
        plane.all_reduce(x)
        return [*seen, float(x[0])]

    results = on_all(kind, 2, 2, tmp_path, work)
    assert results[0] == [3, 4, 5, 6, 7, 2]
    assert [seen[0] for seen in results[1:]] == [0, 1, 2]


def test_messages_longer_than_the_memory_for_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hidden states, logits and sums, in pieces; beside short ones."""
    monkeypatch.setattr(shared_memory, "_SLOT_BYTES", 4096)
    monkeypatch.setattr(shared_memory, "_LOGIT_BYTES", 4096)
    monkeypatch.setattr(shared_memory, "_SUM_FLOATS", 1024)
    sizes = [5000, 1, 1024, 1025, 30_000, 7]

    def work(place: Place, plane: DataPlane) -> None:
        for n in sizes:
            x = np.arange(n, dtype=np.float32)
            if place.stage == 0:
                plane.all_reduce(x)
                plane.send(x.reshape(1, -1))
                continue
            x = plane.receive(1, n).wait()
            assert np.array_equal(x[0], 2 * np.arange(n, dtype=np.float32))
            logits = plane.gather(x, [n, n])
            assert (logits is None) == (place.shard == 1)
            assert logits is None or np.array_equal(logits, np.concatenate([x, x], axis=1))

    on_all(shared, 2, 2, tmp_path, work)


def test_a_long_message_does_not_keep_its_memory(tmp_path: Path) -> None:
    """Of the memory that workers share, what a long prompt took is free again once it has been read."""
    n = 5 * 2**20

    def blocks(memory: SharedMemory) -> int:
        return Path(f"/proc/self/fd/{memory.descriptor}").stat().st_blocks * 512

    places = [Place(stage, 0, 2, 1) for stage in range(2)]
    with shared_by(places) as memory:
        assert memory is not None
        first, second = (SharedMemoryPlane(place, memory) for place in places)
        assert blocks(memory) < 2**16, "what nobody has written takes no memory"
        first.send(np.ones((1, n), np.float32))
        assert blocks(memory) >= 4 * n
        assert second.receive(1, n).wait().sum() == n
        assert blocks(memory) < 2**21


def test_whoever_waits_sleeps_and_is_woken(tmp_path: Path) -> None:
    """Where a wait is longer than it spins, the thread gives up its core by itself."""

    def work(place: Place, plane: DataPlane) -> int:
        if place.stage == 0:
            for _ in range(3):
                time.sleep(0.2)
                plane.send(np.zeros((1, 8), np.float32))
            return 0
        before = getrusage(RUSAGE_THREAD).ru_nvcsw
        for _ in range(3):
            plane.receive(1, 8).wait()
        return getrusage(RUSAGE_THREAD).ru_nvcsw - before

    assert on_all(shared, 2, 1, tmp_path, work)[1] >= 3


def test_a_worker_alone_shares_no_memory() -> None:
    with shared_by([Place(1, 0, 2, 1)]) as memory:
        assert memory is None


def test_words_for_a_worker() -> None:
    memory = SharedMemory(7, range(2, 6))
    assert SharedMemory.from_text(memory.to_text()) == memory
