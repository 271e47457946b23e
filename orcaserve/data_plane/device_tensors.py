"""The data plane for tensors that lie on a device: NCCL between GPUs, Gloo between CPUs, the same code over both.

    a stage, shard by shard          a group of all its shards: everybody gets what everybody has, and adds or joins it
    a shard, from stage to stage     a group of two for every step, so that no transfer waits behind one of another kind

Everything is made of gathers and of transfers between two. An all-reduce of either library adds up each piece of an
array in another order, so that a row's sum would depend, by rounding, on where in a batch it stands; here the parts are
added in the order of the shards, in float32, at each of them. It costs memory for all parts, and as many arrays into
each GPU as there are other shards, where a ring takes two: no more for three shards, and little for a few.

On a GPU nothing here makes the host wait but `IncomingTensor.wait`: transfers run on NCCL's own streams beside the
computation, and what is computed next waits for them on the device. A receive takes a few of the GPU's processors while
it waits. No circle of waits can close: a stage waits for the one before it, and sends into receives that begin with the
control message, whatever their stage computes.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from orcaserve.data_plane.protocol import Place
from orcaserve.data_plane.torch_distributed import PATIENCE, StoreAddress, gloo_options, open_store, translated

_log = logging.getLogger(__name__)

# Of torch's watchers of NCCL, which would abort this process, as if it had been the one that broke, or look for the
# store long after the workers have met. The engine master watches all workers and knows better.
_UNWATCHED = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}


class IncomingTensor(Protocol):
    """A receive under way."""

    def wait(self) -> Tensor:
        """The numbers, ours to change. Raises NeighbourLost."""


class TensorPlane(Protocol):
    """A DataPlane (see protocol.py, also for what each verb promises) whose numbers are tensors of one device."""

    sums: None  # no kernels of ours add up by themselves

    def receive(self, n_rows: int, width: int) -> IncomingTensor: ...

    def send(self, rows: Tensor) -> None: ...

    def all_reduce(self, x: Tensor, n_next: int = 0) -> None: ...

    def gather(self, own: Tensor, widths: Sequence[int]) -> Tensor | None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where workers find each other: see TorchDataPlane, which takes the same."""

    place: Place
    rendezvous: Path | StoreAddress
    join_timeout: float
    address: str = "127.0.0.1"


class Circle(Protocol):
    """The shards of a stage."""

    def all(self, own: Tensor) -> Tensor:
        """own [rows, width], contiguous, of every shard -> [shards, rows, width]. Raises NeighbourLost."""


class Groups(Protocol):
    """Makes torch's process groups. All members of a group must make it, by one name; each waits for the others."""

    def pair(self, name: str, rank: int) -> Any:
        """A process group, for transfers from rank 0 to rank 1."""

    def circle(self, name: str, rank: int, size: int) -> Circle: ...


class GlooGroups:
    """For tensors in a CPU's memory."""

    def __init__(self, store: Any, address: str, join_timeout: float) -> None:
        self._store, self._options = store, gloo_options(address, join_timeout)

    def pair(self, name: str, rank: int) -> Any:
        return self._group(name, rank, 2)

    def circle(self, name: str, rank: int, size: int) -> Circle:
        return _GlooCircle(self._group(name, rank, size))

    def _group(self, name: str, rank: int, size: int) -> Any:
        gloo: Any = dist.ProcessGroupGloo
        group = gloo(_store_of(name, self._store), rank, size, self._options)
        group.set_timeout(PATIENCE)
        return group


class _GlooCircle:
    """Everybody sends to everybody: Gloo's own gather of small arrays takes ten times as long."""

    def __init__(self, group: Any) -> None:
        self._group, self._rank = group, group.rank()
        self._others = [rank for rank in range(group.size()) if rank != self._rank]

    def all(self, own: Tensor) -> Tensor:
        everything = own.new_empty((len(self._others) + 1, *own.shape))
        everything[self._rank] = own
        with translated():
            transfers = [self._group.recv([everything[rank]], rank, 0) for rank in self._others]
            transfers += [self._group.send([own], rank, 0) for rank in self._others]
            for transfer in transfers:
                transfer.wait()
        return everything


class NCCLGroups:
    """For tensors on GPUs, each worker having one of its own.

    NCCL connects at the first transfer, and meets through the store: so there is one here, for the store's file is gone
    afterwards.
    """

    def __init__(self, store: Any, address: str, device: torch.device) -> None:
        self._store, self._device = store, device
        for name, value in _UNWATCHED.items():
            os.environ.setdefault(name, value)
        if address == "127.0.0.1":  # else NCCL would listen on the machine's network as well
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")

    def pair(self, name: str, rank: int) -> Any:
        group, number = self._group(name, rank, 2), self._number()
        (group.recv if rank else group.send)([number], 1 - rank, 0).wait()
        torch.cuda.current_stream(self._device).synchronize()
        return group

    def circle(self, name: str, rank: int, size: int) -> Circle:
        circle = _NCCLCircle(self._group(name, rank, size))
        circle.all(self._number())
        torch.cuda.current_stream(self._device).synchronize()
        return circle

    def _group(self, name: str, rank: int, size: int) -> Any:
        nccl: Any = dist.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = PATIENCE
        return nccl(_store_of(name, self._store), rank, size, options)

    def _number(self) -> Tensor:
        return torch.zeros((1, 1), device=self._device)


class _NCCLCircle:
    def __init__(self, group: Any) -> None:
        self._group = group

    def all(self, own: Tensor) -> Tensor:
        everything = own.new_empty((self._group.size(), *own.shape))
        with translated():
            self._group._allgather_base(everything, own).wait()
        return everything


class _Incoming:
    """rows: where to. stream: of the GPU, where the receive began, or None."""

    def __init__(self, group: Any, rows: Tensor, stream: torch.cuda.Stream | None) -> None:
        self._rows, self._stream = rows, stream
        with translated():
            self._work = group.recv([rows], 0, 0)

    def wait(self) -> Tensor:
        with translated(), torch.cuda.stream(self._stream):
            self._work.wait()
        if self._stream is not None:  # the host waits as well, so that whoever watches it sees for what
            self._stream.record_event().synchronize()
            self._rows.record_stream(torch.cuda.current_stream(self._rows.device))
        return self._rows


class DevicePlane:
    """A TensorPlane over process groups. Make it with `meet`.

    dtype: of hidden states and sums.
    """

    sums = None

    def __init__(self, place: Place, groups: Groups, device: torch.device, dtype: torch.dtype) -> None:
        self._place, self._device, self._dtype = place, device, dtype
        # In this order everywhere: whoever waits for a later stage to come waits for one that does not wait for him.
        self._before = self._step(groups, place.stage - 1) if place.stage else None
        self._after = None if place.last else self._step(groups, place.stage)
        alone = place.n_shards == 1
        self._shards = None if alone else groups.circle(f"stage-{place.stage}", place.shard, place.n_shards)
        self._sent: deque[tuple[Any, Tensor]] = deque()  # under way, with what must live until it has left
        # Receives begin on another thread, which must not wait for what the device computes.
        self._arrivals: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._arrivals = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def receive(self, n_rows: int, width: int) -> _Incoming:
        with torch.cuda.stream(self._arrivals):
            rows = torch.empty((n_rows, width), dtype=self._dtype, device=self._device)
            return _Incoming(self._before, rows, self._arrivals)

    def send(self, rows: Tensor) -> None:
        assert self._after is not None
        with translated():
            self._sent.append((self._after.send([rows], 1, 0), rows))
            if len(self._sent) > self._place.n_stages:  # as many batches are in flight: the oldest has long arrived
                self._sent.popleft()[0].wait()

    def all_reduce(self, x: Tensor, n_next: int = 0) -> None:
        first, *others = self._shares(x)
        total = first.float()
        for other in others:
            total += other
        x.copy_(total)

    def gather(self, own: Tensor, widths: Sequence[int]) -> Tensor | None:
        widest = max(widths)
        everything = self._shares(torch.nn.functional.pad(own, (0, widest - own.shape[1])))
        if self._place.shard:
            return None
        return torch.cat([rows[:, :width] for rows, width in zip(everything, widths, strict=True)], dim=1)

    def close(self) -> None:
        self._sent.clear()

    def _shares(self, own: Tensor) -> Tensor:
        assert self._shards is not None
        return self._shards.all(own)

    def _step(self, groups: Groups, stage: int) -> Any:
        """From that stage to the next: rank 0 sends, rank 1 receives."""
        return groups.pair(f"step-{stage}-{self._place.shard}", int(stage != self._place.stage))


class _Copied:
    def __init__(self, incoming: IncomingTensor, device: torch.device) -> None:
        self._incoming, self._device = incoming, device

    def wait(self) -> Tensor:
        return self._incoming.wait().to(self._device)


class HostCopies:
    """A TensorPlane for workers that share a GPU: over one of the CPU, to whose memory everything is copied."""

    sums = None

    def __init__(self, plane: TensorPlane, device: torch.device) -> None:
        self._plane, self._device = plane, device

    def receive(self, n_rows: int, width: int) -> _Copied:
        return _Copied(self._plane.receive(n_rows, width), self._device)

    def send(self, rows: Tensor) -> None:
        self._plane.send(rows.cpu())

    def all_reduce(self, x: Tensor, n_next: int = 0) -> None:
        total = x.cpu()
        self._plane.all_reduce(total, n_next)
        x.copy_(total)

    def gather(self, own: Tensor, widths: Sequence[int]) -> Tensor | None:
        everything = self._plane.gather(own.cpu(), widths)
        return None if everything is None else everything.to(self._device)

    def close(self) -> None:
        self._plane.close()


def meet(meeting: Meeting, device: torch.device, dtype: torch.dtype) -> TensorPlane:
    """Find the other workers, all of whom must call this at about the same time.

    Numbers go through NCCL if every worker has a GPU of its own. NCCL refuses two on one: then, as between CPUs, they
    go through Gloo. Raises RuntimeError if the others do not come.
    """
    place, timeout = meeting.place, timedelta(seconds=meeting.join_timeout)
    store = open_store(meeting.rendezvous, place.n_ranks, timeout)
    store.set_timeout(timeout)
    store.set(f"device-{place.rank}", _identity(device))
    devices = [store.get(f"device-{rank}") for rank in range(place.n_ranks)]
    if device.type == "cuda" and all_differ(devices):
        return DevicePlane(place, NCCLGroups(store, meeting.address, device), device, dtype)
    host = DevicePlane(place, GlooGroups(store, meeting.address, meeting.join_timeout), torch.device("cpu"), dtype)
    if device.type == "cpu":
        return host
    if place.rank == 0:
        _log.warning("workers share a GPU, which NCCL refuses: numbers go through the host's memory, which is slower")
    return HostCopies(host, device)


def _store_of(group: str, store: Any) -> Any:
    return dist.PrefixStore(group, store)  # type: ignore[attr-defined]


def all_differ(devices: Sequence[bytes]) -> bool:
    """Whether no two workers, on whatever machines, use the same GPU."""
    return len(set(devices)) == len(devices)


def _identity(device: torch.device) -> str:
    """The same for two workers if, and only if, they use the same GPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else device.type
