"""The data plane over real Gloo, its workers being threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import TypeVar

import numpy as np
import pytest

from orcaserve.data_plane.protocol import Place

pytest.importorskip("torch")
from orcaserve.data_plane.torch_distributed import TorchDataPlane

T = TypeVar("T")


def on_all(n_stages: int, n_shards: int, folder: Path, work: Callable[[Place, TorchDataPlane], T]) -> list[T]:
    places = [Place(stage, shard, n_stages, n_shards) for stage in range(n_stages) for shard in range(n_shards)]

    over = Barrier(len(places))

    def run(place: Place) -> T:
        plane = TorchDataPlane(place, folder / "rendezvous", 30)
        try:
            result = work(place, plane)
            over.wait(30)  # what was sent may still be under way, and ends with the one who sent it
            return result
        except BaseException:
            over.abort()
            raise
        finally:
            plane.close()

    with ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(run, places))


@pytest.mark.parametrize("n_shards", [2, 3, 4])
def test_sums_are_the_same_everywhere_and_for_a_row_in_any_company(n_shards: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((n_shards, 40, 96)).astype(np.float32)

    def work(place: Place, plane: TorchDataPlane) -> list[np.ndarray]:
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
    for many, one in on_all(1, n_shards, tmp_path, work):
        assert np.array_equal(many, in_order)
        assert np.array_equal(one, in_order[17])


def test_columns_side_by_side(tmp_path: Path) -> None:
    widths = [3, 5, 4]
    whole = np.arange(24, dtype=np.float32).reshape(2, 12)
    edges = np.cumsum([0, *widths])

    def work(place: Place, plane: TorchDataPlane) -> np.ndarray | None:
        return plane.gather(np.ascontiguousarray(whole[:, edges[place.shard] : edges[place.shard + 1]]), widths)

    first, *others = on_all(1, 3, tmp_path, work)
    assert np.array_equal(first, whole)
    assert others == [None, None]


def test_hidden_states_come_in_order_whoever_is_first(tmp_path: Path) -> None:
    sizes = [1, 70, 3, 500, 2, 2]

    def work(place: Place, plane: TorchDataPlane) -> list[float]:
        if place.stage == 0:
            for i, n in enumerate(sizes):
                plane.send(np.full((n, 8), i + 10 * place.shard, np.float32))
            return []
        incoming = [plane.receive(n, 8) for n in sizes]
        return [float(np.unique(receive.wait()).item()) for receive in incoming]

    assert on_all(2, 2, tmp_path, work) == [[], [], [0, 1, 2, 3, 4, 5], [10, 11, 12, 13, 14, 15]]


def test_rows_go_round_from_worker_to_worker(tmp_path: Path) -> None:
    """Whatever their stages and shards, as while a model is watched; and the sums after that are undisturbed."""

    def work(place: Place, plane: TorchDataPlane) -> list[float]:
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

    results = on_all(2, 2, tmp_path, work)
    assert results[0] == [3, 4, 5, 6, 7, 2]
    assert [seen[0] for seen in results[1:]] == [0, 1, 2]
