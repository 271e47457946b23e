"""What a process does on the data plane, in every order of events: for tests that have GPUs."""

from __future__ import annotations

from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import torch

from orcaserve.data_plane.device_tensors import Meeting, meet
from orcaserve.data_plane.protocol import Place

SIZES = [1, 70, 3, 5000, 2, 2]  # rows of hidden states, iteration by iteration
WIDTHS = [300, 301, 299, 300]  # of shards' logits
HIDDEN = 768


def numbers(shard: int, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(shard)).to(dtype)


def exchange(place: Place, folder: Path, gpu: int, dtype: torch.dtype, results: Queue[Any], over: Any) -> None:
    """Puts (rank, name of the plane, first element of every hidden state, sums, one row's sum, logits or None)."""
    device = torch.device("cuda", gpu)
    torch.cuda.set_device(device)
    plane = meet(Meeting(place, folder / "rendezvous", 120), device, dtype)
    incoming = [plane.receive(n, HIDDEN) for n in SIZES] if place.stage else []
    firsts = []
    many = numbers(place.shard, 300, HIDDEN, dtype).to(device)
    one = many[17:18].clone()
    for i, n in enumerate(SIZES):
        busy = torch.ones(2048, 2048, device=device)
        for _ in range(20):
            busy = busy @ busy * 0  # the device is busy while transfers run
        if place.n_shards > 1:
            plane.all_reduce(torch.ones(n, HIDDEN, dtype=dtype, device=device))
        if place.stage:
            rows = incoming[i].wait() + busy[0, 0].to(dtype)
            assert rows.device == device and rows.dtype == dtype and len(rows.unique()) == 1
            firsts.append(float(rows[0, 0]))
            rows = rows + 1
        else:
            rows = torch.full((n, HIDDEN), i + 10 * place.shard, dtype=dtype, device=device) + busy[0, 0].to(dtype)
        if not place.last:
            plane.send(rows)
        del rows  # its memory may be given to others while it is still being sent
        torch.full((n, HIDDEN), -1, dtype=dtype, device=device)
    logits = None
    if place.n_shards > 1:
        plane.all_reduce(many)
        plane.all_reduce(one)
        widths = WIDTHS[: place.n_shards]
        logits = plane.gather(numbers(place.shard, 9, widths[place.shard], torch.float32).to(device), widths)
    torch.cuda.synchronize()
    name = type(plane).__name__
    results.put((place.rank, name, firsts, many.cpu(), one.cpu(), None if logits is None else logits.cpu()))
    over.wait(120)  # what was sent may still be under way, and ends with the one who sent it
    plane.close()
