"""The data plane between GPUs: NCCL where every worker has its own, copies through the host where they share one."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from orcaserve.data_plane.protocol import Place

torch = pytest.importorskip("torch")
N_GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = pytest.mark.skipif(N_GPUS == 0, reason="there is no GPU")


def on_gpus(n: int) -> pytest.MarkDecorator:
    return pytest.mark.skipif(n > N_GPUS, reason=f"needs {n} GPUs")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("n_stages", "n_shards", "road"),
    [
        (2, 1, "HostCopies"),
        (1, 2, "HostCopies"),
        (2, 2, "HostCopies"),
        pytest.param(2, 1, "DevicePlane", marks=on_gpus(2)),
        pytest.param(1, 2, "DevicePlane", marks=on_gpus(2)),
        pytest.param(1, 3, "DevicePlane", marks=on_gpus(3)),
        pytest.param(3, 1, "DevicePlane", marks=on_gpus(3)),
        pytest.param(2, 2, "DevicePlane", marks=on_gpus(4)),
        pytest.param(2, 4, "DevicePlane", marks=on_gpus(8)),
    ],
)
def test_numbers_arrive_in_order_and_sums_are_the_same_for_all(
    n_stages: int, n_shards: int, road: str, dtype: str, tmp_path: Path
) -> None:
    from plane_process import SIZES, WIDTHS, exchange, numbers

    kind = getattr(torch, dtype)
    context = multiprocessing.get_context("spawn")
    places = [Place(stage, shard, n_stages, n_shards) for stage in range(n_stages) for shard in range(n_shards)]
    results, over = context.Queue(), context.Barrier(len(places))
    processes = [
        context.Process(
            target=exchange, args=(place, tmp_path, place.rank if road == "DevicePlane" else 0, kind, results, over)
        )
        for place in places
    ]
    for process in processes:
        process.start()
    try:
        found = sorted((results.get(timeout=240) for _ in places), key=lambda result: result[0])
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0] * len(places)
    finally:
        for process in processes:
            process.kill()
    in_order = numbers(0, 300, 768, kind).float()
    for shard in range(1, n_shards):
        in_order = in_order + numbers(shard, 300, 768, kind).float()
    logits = torch.cat([numbers(shard, 9, width, torch.float32) for shard, width in enumerate(WIDTHS[:n_shards])], 1)
    for place, (_, name, firsts, many, one, own_logits) in zip(places, found, strict=True):
        assert name == road
        if place.stage:
            assert firsts == [i + 10 * place.shard + place.stage - 1 for i in range(len(SIZES))]
        if n_shards > 1:
            assert torch.equal(many, in_order.to(kind)) and torch.equal(one, many[17:18])
            assert (own_logits is None) == (place.shard > 0)
            assert place.shard > 0 or torch.equal(own_logits, logits)


def test_a_circle_of_one_over_nccl(tmp_path: Path) -> None:
    """As much of NCCL as one GPU can do."""
    import torch.distributed as dist

    from orcaserve.data_plane.device_tensors import NCCLGroups

    if not dist.is_nccl_available():
        pytest.skip("this build of PyTorch has no NCCL")
    device = torch.device("cuda", 0)
    groups = NCCLGroups(dist.FileStore(str(tmp_path / "store"), 1), "127.0.0.1", device)
    own = torch.randn(5, 7, device=device)
    assert torch.equal(groups.circle("alone", 0, 1).all(own), own[None])
