"""The data plane over torch.distributed: Gloo, between the CPUs of one machine or of several.

Only point-to-point transfers are used. Gloo's own all-reduce adds up each piece of an array in another order, so that
a row's sum would depend, by rounding, on where in a batch it stands; and for the small arrays of an iteration one
exchange among a few shards is quicker than the two rounds of a ring.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from orcaserve.data_plane.protocol import Floats, NeighbourLost, Place

_HIDDEN, _SUM, _LOGITS, _WATCHED = 1, 2, 3, 4  # tags: transfers of one kind keep their order
PATIENCE = timedelta(hours=1)  # a stage may compute a long prompt for minutes. Who is lost is seen elsewhere.


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """torch says RuntimeError of whatever happens to a transfer."""
    try:
        yield
    except RuntimeError as error:
        raise NeighbourLost(str(error)) from error


class _Receive:
    def __init__(self, group: Any, buffer: Floats, source: int, tag: int) -> None:
        self._buffer = buffer
        with translated():
            self._work = group.recv([torch.from_numpy(buffer)], source, tag)

    def wait(self) -> Floats:
        with translated():
            self._work.wait()
        return self._buffer


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where workers of several machines find each other: a TCPStore, served by the first of them.

    listener: there, the socket, which listens already at this address alone (torch's own would listen at all).
    """

    host: str
    port: int
    listener: int | None = None

    def open(self, n_ranks: int, timeout: timedelta) -> Any:
        serves = self.listener is not None
        return dist.TCPStore(  # type: ignore[attr-defined]
            self.host, self.port, n_ranks, serves, timeout, wait_for_workers=False, master_listen_fd=self.listener
        )


def open_store(rendezvous: Path | StoreAddress, n_ranks: int, timeout: timedelta) -> Any:
    if isinstance(rendezvous, StoreAddress):
        return rendezvous.open(n_ranks, timeout)
    return dist.FileStore(str(rendezvous), n_ranks)  # type: ignore[attr-defined]


def gloo_options(address: str, join_timeout: float) -> Any:
    """Of groups whose members meet within join_timeout seconds, and of which nothing listens but at `address`."""
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=address)]
    options._timeout = timedelta(seconds=join_timeout)
    options._threads = 1
    return options


class TorchDataPlane:
    """A DataPlane. All workers must make theirs at about the same time: each waits for the others.

    rendezvous: a file in a directory of our own, through which the workers find each other, or a store's address.
    join_timeout: seconds to wait for the others. Raises RuntimeError if they do not come.
    address: of this machine, where the others connect; nothing listens at any other.
    """

    sums = None

    def __init__(
        self, place: Place, rendezvous: Path | StoreAddress, join_timeout: float, address: str = "127.0.0.1"
    ) -> None:
        self._place = place
        gloo: Any = dist.ProcessGroupGloo
        self._store = open_store(rendezvous, place.n_ranks, timedelta(seconds=join_timeout))  # served while it is kept
        self._group = gloo(self._store, place.rank, place.n_ranks, gloo_options(address, join_timeout))
        self._group.set_timeout(PATIENCE)
        self._sums: dict[int, _Receive] = {}  # expected by the next sum
        self._sent: deque[tuple[Any, torch.Tensor]] = deque()  # under way, with what must live until it has left

    def receive(self, n_rows: int, width: int) -> _Receive:
        place = self._place
        source = place.rank_of(place.stage - 1, place.shard)
        return _Receive(self._group, np.empty((n_rows, width), np.float32), source, _HIDDEN)

    def send(self, rows: Floats) -> None:
        place, tensor = self._place, torch.from_numpy(rows)
        with translated():
            work = self._group.send([tensor], place.rank_of(place.stage + 1, place.shard), _HIDDEN)
            self._sent.append((work, tensor))
            if len(self._sent) > place.n_stages:  # as many batches are in flight: the oldest has long arrived
                self._sent.popleft()[0].wait()

    def all_reduce(self, x: Floats, n_next: int = 0) -> None:
        place = self._place
        incoming = self._sums or self._expect_sums(x.size)
        self._send_all(x, [place.rank_of(place.stage, shard) for shard in incoming], _SUM)
        others = {shard: receive.wait() for shard, receive in incoming.items()}
        self._sums = self._expect_sums(n_next) if n_next else {}
        total = x if place.shard == 0 else others[0]
        for shard in range(1, place.n_shards):
            np.add(total, x if shard == place.shard else others[shard], out=total)
        if total is not x:
            x[:] = total

    def _expect_sums(self, n: int) -> dict[int, _Receive]:
        """Begin to take the arrays of the next sum, by shard: who is expected need not be announced first."""
        place = self._place
        return {
            shard: _Receive(self._group, np.empty(n, np.float32), place.rank_of(place.stage, shard), _SUM)
            for shard in range(place.n_shards)
            if shard != place.shard
        }

    def gather(self, own: Floats, widths: Sequence[int]) -> Floats | None:
        place = self._place
        if place.shard:
            self._send_all(own, [place.rank_of(place.stage, 0)], _LOGITS)
            return None
        incoming = [
            _Receive(self._group, np.empty((len(own), width), np.float32), place.rank_of(place.stage, shard), _LOGITS)
            for shard, width in enumerate(widths)
            if shard
        ]
        return np.concatenate([own, *(receive.wait() for receive in incoming)], axis=1)

    def send_to(self, rank: int, rows: Floats) -> None:
        self._send_all(rows, [rank], _WATCHED)

    def receive_from(self, rank: int, n_rows: int, width: int) -> Floats:
        return _Receive(self._group, np.empty((n_rows, width), np.float32), rank, _WATCHED).wait()

    def close(self) -> None:
        self._sent.clear()

    def _send_all(self, x: Floats, ranks: Sequence[int], tag: int) -> None:
        """Returns when x may be changed again."""
        tensor = torch.from_numpy(x)
        with translated():
            for work in [self._group.send([tensor], rank, tag) for rank in ranks]:
                work.wait()
