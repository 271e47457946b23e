"""DataPlane: how the parts of a model pass numbers to each other. numpy only; implementations bring their libraries.

                 shard 0        shard 1
    stage 0      [s0r0] <sums>  [s0r1]       sums: twice per layer, over the shards of a stage
                   |              |          hidden states: every shard to its own number in the next stage
    stage 1      [s1r0] <sums>  [s1r1]
                   ^---- logits --'          of its vocabulary, to shard 0 of the last stage

Before the first iteration, while the model is watched, rows also go from any worker to any other one.

Both sides of every transfer know its size from the control message, so no size, id or object travels here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker stands among all."""

    stage: int
    shard: int
    n_stages: int
    n_shards: int

    @property
    def rank(self) -> int:
        return self.rank_of(self.stage, self.shard)

    @property
    def n_ranks(self) -> int:
        return self.n_stages * self.n_shards

    @property
    def last(self) -> bool:
        return self.stage == self.n_stages - 1

    @property
    def name(self) -> str:
        return f"s{self.stage}r{self.shard}"

    def rank_of(self, stage: int, shard: int) -> int:
        return stage * self.n_shards + shard


class NeighbourLost(Exception):
    """A transfer broke: the other side has ended, or its connection has."""


class Incoming(Protocol):
    """A receive under way."""

    def wait(self) -> Floats:
        """The numbers, ours to change. Raises NeighbourLost."""


class Sums(Protocol):
    """Adds up over shards, called by kernels."""

    @property
    def waiting(self) -> bool:
        """Whether it waits for other shards now."""


class DataPlane(Protocol):
    """A worker's transfers; each kind is first in, first out. A call raises NeighbourLost once one is known to be gone;
    one that is waiting then may also wait until this worker is ended."""

    @property
    def sums(self) -> Sums | None:
        """What kernels call by themselves for the sums over shards; None: they are to call `all_reduce`."""

    def receive(self, n_rows: int, width: int) -> Incoming:
        """Begin to take [n_rows, width] from the stage before. Any thread, in the order of iterations."""

    def send(self, rows: Floats) -> None:
        """Begin to pass contiguous rows to the next stage; returns at once. They must not be changed any more."""

    def all_reduce(self, x: Floats, n_next: int = 0) -> None:
        """Sum over the shards of this stage, in place, in the order of the shards whatever the size: the same to the
        bit on every shard, and for a row whatever rows are beside it.

        n_next: how many numbers the next sum will have; 0: not known yet."""

    def gather(self, own: Floats, widths: list[int]) -> Floats | None:
        """Columns of all shards side by side at shard 0, None elsewhere. own: [rows, widths[shard]], contiguous."""

    def send_to(self, rank: int, rows: Floats) -> None:
        """Before the first iteration: contiguous rows to any worker. Returns when they may be changed again."""

    def receive_from(self, rank: int, n_rows: int, width: int) -> Floats:
        """What that worker sends to this one."""

    def close(self) -> None: ...
