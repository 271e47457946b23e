"""The data plane for tensors over real Gloo, its workers being threads. The same code runs over NCCL: see tests/gpu."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import TypeVar

import pytest

from orcaserve.data_plane.protocol import NeighbourLost, Place

pytest.importorskip("torch")
import torch
from torch import Tensor

from orcaserve.data_plane.device_tensors import HostCopies, Meeting, TensorPlane, all_differ, meet

T = TypeVar("T")
CPU = torch.device("cpu")
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def on_all(
    n_stages: int,
    n_shards: int,
    folder: Path,
    work: Callable[[Place, TensorPlane], T],
    dtype: torch.dtype = torch.float32,
    copied: bool = False,
) -> list[T]:
    """copied: as where workers share a GPU."""
    places = [Place(stage, shard, n_stages, n_shards) for stage in range(n_stages) for shard in range(n_shards)]
    over = Barrier(len(places))

    def run(place: Place) -> T:
        plane = meet(Meeting(place, folder / "rendezvous", 30), CPU, dtype)
        plane = HostCopies(plane, CPU) if copied else plane
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


@DTYPES
@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("n_shards", [2, 3])
def test_sums_are_the_same_everywhere_and_for_a_row_in_any_company(
    n_shards: int, copied: bool, dtype: torch.dtype, tmp_path: Path
) -> None:
    rows = torch.randn(n_shards, 40, 96, generator=torch.Generator().manual_seed(1)).to(dtype)

    def work(place: Place, plane: TensorPlane) -> list[Tensor]:
        many, one = rows[place.shard].clone(), rows[place.shard, 17:18].clone()
        plane.all_reduce(many)
        plane.all_reduce(one)
        return [many, one]

    in_order = rows[0].float()
    for shard in rows[1:]:
        in_order = in_order + shard.float()
    for many, one in on_all(1, n_shards, tmp_path, work, dtype, copied):
        assert many.dtype == dtype and torch.equal(many, in_order.to(dtype))
        assert torch.equal(one, many[17:18])


@pytest.mark.parametrize("copied", [False, True])
def test_columns_side_by_side(copied: bool, tmp_path: Path) -> None:
    widths = [3, 5, 4]
    whole = torch.arange(24, dtype=torch.float32).reshape(2, 12)

    def work(place: Place, plane: TensorPlane) -> Tensor | None:
        return plane.gather(whole.split(widths, dim=1)[place.shard].contiguous(), widths)

    first, *others = on_all(1, 3, tmp_path, work, copied=copied)
    assert first is not None and torch.equal(first, whole)
    assert others == [None, None]


@DTYPES
@pytest.mark.parametrize("copied", [False, True])
def test_hidden_states_come_in_order_whoever_is_first(copied: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    """Through three stages, the one in the middle having both sides; sums go on meanwhile."""
    sizes = [1, 70, 3, 500, 2, 2]

    def work(place: Place, plane: TensorPlane) -> list[float]:
        numbers = []
        if place.stage > 0:
            incoming = [plane.receive(n, 8) for n in sizes]
            for receive in incoming:
                plane.all_reduce(torch.ones(1, 8))
                rows = receive.wait()
                assert rows.dtype == dtype and len(rows.unique()) == 1
                numbers.append(float(rows[0, 0]))
                if place.stage == 1:
                    plane.send(rows + 1)
        else:
            for i, n in enumerate(sizes):
                plane.all_reduce(torch.ones(1, 8))
                plane.send(torch.full((n, 8), i + 10 * place.shard, dtype=dtype))
        return numbers

    zero, ten = [0, 1, 2, 3, 4, 5], [10, 11, 12, 13, 14, 15]
    expected = [[], [], zero, ten, [n + 1 for n in zero], [n + 1 for n in ten]]
    assert on_all(3, 2, tmp_path, work, dtype, copied) == expected


def test_a_neighbour_that_is_gone(tmp_path: Path) -> None:
    gone = Barrier(2)

    def run(place: Place) -> None:
        plane = meet(Meeting(place, tmp_path / "rendezvous", 30), CPU, torch.float32)
        if place.stage == 0:
            gone.wait(30)
            return
        receive = plane.receive(2, 8)
        gone.wait(30)
        with pytest.raises(NeighbourLost):
            receive.wait()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, [Place(0, 0, 2, 1), Place(1, 0, 2, 1)]))


def test_nccl_only_where_every_worker_has_a_gpu_of_its_own() -> None:
    assert all_differ([b"GPU-a", b"GPU-b", b"GPU-c"])
    assert not all_differ([b"GPU-a", b"GPU-b", b"GPU-a"])
