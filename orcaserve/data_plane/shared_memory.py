"""The data plane of workers on one machine: memory that all of them have mapped.

Nobody meets anybody: a message may be there before its receiver is. Nor does anything here notice a neighbour's end;
whoever started the workers does, and ends them.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import numpy as np

from orcaserve.data_plane.memory import SharedMemory
from orcaserve.data_plane.protocol import Floats, Place
from orcaserve.native import _kernels

_SLOT_BYTES = 64 * 2**20  # of one message; what is not used of it takes no memory. A longer message takes several
_LOGIT_BYTES = 4 * 2**20
_WATCHED_BYTES = 4 * 2**20
_SUM_FLOATS = 2**20  # of each shard, twice


class _Incoming:
    def __init__(self, mailbox: _kernels.Mailbox, n_rows: int, width: int) -> None:
        self._mailbox = mailbox
        self._shape = n_rows, width

    def wait(self) -> Floats:
        rows = np.empty(self._shape, np.float32)
        self._mailbox.take(rows)
        return rows


class SharedMemoryPlane:
    """A DataPlane between a worker and those neighbours that share its memory; calls that need others fail.

    sums: those of this stage, for kernels to call; None with one shard, or if shards are elsewhere.
    """

    def __init__(self, place: Place, memory: SharedMemory) -> None:
        self._place = place
        starts, size = _lay_out(place, memory.ranks)
        os.ftruncate(memory.descriptor, size)  # the same for all
        self._memory = np.frombuffer(mmap.mmap(memory.descriptor, size), np.uint8)
        stage, shard, n_shards = place.stage, place.shard, place.n_shards
        self._before = self._mailbox(starts.get(("hidden", stage - 1, shard)), place.n_stages, _SLOT_BYTES)
        self._after = self._mailbox(starts.get(("hidden", stage, shard)), place.n_stages, _SLOT_BYTES)
        self._logits = [self._mailbox(starts.get(("logits", stage, i)), 2, _LOGIT_BYTES) for i in range(n_shards)]
        own, others = place.rank, [rank for rank in memory.ranks if rank != place.rank]
        self._to = {rank: self._mailbox(starts["watched", own, rank], 2, _WATCHED_BYTES) for rank in others}
        self._from = {rank: self._mailbox(starts["watched", rank, own], 2, _WATCHED_BYTES) for rank in others}
        sums = starts.get(("sums", stage, 0))
        self.sums = None if sums is None else _kernels.SharedSums(self._memory, sums, shard, n_shards, _SUM_FLOATS)

    def _mailbox(self, at: int | None, n_slots: int, slot_bytes: int) -> _kernels.Mailbox | None:
        return None if at is None else _kernels.Mailbox(self._memory, at, n_slots, slot_bytes)

    def receive(self, n_rows: int, width: int) -> _Incoming:
        assert self._before is not None
        return _Incoming(self._before, n_rows, width)

    def send(self, rows: Floats) -> None:
        assert self._after is not None
        self._after.put(rows)

    def all_reduce(self, x: Floats, n_next: int = 0) -> None:
        assert self.sums is not None
        self.sums.add(x)

    def gather(self, own: Floats, widths: Sequence[int]) -> Floats | None:
        if self._place.shard:
            mailbox = self._logits[self._place.shard]
            assert mailbox is not None
            mailbox.put(own)
            return None
        parts = [own]
        for mailbox, width in list(zip(self._logits, widths, strict=True))[1:]:
            assert mailbox is not None
            parts.append(_Incoming(mailbox, len(own), width).wait())
        return np.concatenate(parts, axis=1)

    def send_to(self, rank: int, rows: Floats) -> None:
        mailbox = self._to[rank]
        assert mailbox is not None
        mailbox.put(rows)

    def receive_from(self, rank: int, n_rows: int, width: int) -> Floats:
        mailbox = self._from[rank]
        assert mailbox is not None
        return _Incoming(mailbox, n_rows, width).wait()

    def close(self) -> None: ...


def _lay_out(place: Place, ranks: range) -> tuple[dict[tuple[str, int, int], int], int]:
    """Where in the memory things are, the same for every worker that has it, and the size of all.

    There is something for every pair and every stage whose workers are all here.
    """
    n_stages, n_shards = place.n_stages, place.n_shards
    sizes: dict[tuple[str, int, int], int] = {}
    for stage in range(n_stages):
        here = [place.rank_of(stage, shard) in ranks for shard in range(n_shards)]
        for shard in range(n_shards):
            if here[shard] and stage + 1 < n_stages and place.rank_of(stage + 1, shard) in ranks:
                sizes["hidden", stage, shard] = _kernels.Mailbox.bytes(n_stages, _SLOT_BYTES)
        if n_shards > 1 and all(here):
            sizes["sums", stage, 0] = _kernels.SharedSums.bytes(n_shards, _SUM_FLOATS)
            for shard in range(1, n_shards if stage + 1 == n_stages else 1):
                sizes["logits", stage, shard] = _kernels.Mailbox.bytes(2, _LOGIT_BYTES)
    for sender in ranks:
        for receiver in ranks:
            if sender != receiver:
                sizes["watched", sender, receiver] = _kernels.Mailbox.bytes(2, _WATCHED_BYTES)
    starts, at = {}, 0
    for name, n_bytes in sizes.items():
        starts[name] = at
        at += -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    return starts, max(at, mmap.PAGESIZE)
