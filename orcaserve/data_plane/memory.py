"""SharedMemory: what the workers of one machine have in common, as whoever starts them makes it. Standard library only.

It has no name (a memfd): workers inherit its descriptor, and the kernel frees it with the last of them, however they
ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from orcaserve.data_plane.protocol import Place

AVAILABLE = hasattr(os, "memfd_create")


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """descriptor: of the memory. ranks: whose it is, a run of all ranks."""

    descriptor: int
    ranks: range

    def to_text(self) -> str:
        return f"{self.descriptor},{self.ranks.start},{self.ranks.stop}"

    @classmethod
    def from_text(cls, text: str) -> SharedMemory:
        descriptor, start, stop = map(int, text.split(","))
        return cls(descriptor, range(start, stop))


@contextmanager
def shared_by(places: Sequence[Place]) -> Iterator[SharedMemory | None]:
    """Memory for the workers of one machine, which are to be started inside of this. None for a worker alone, and where
    the system has no such memory."""
    if len(places) < 2 or not AVAILABLE:
        yield None
        return
    descriptor = os.memfd_create("orcaserve")
    try:
        yield SharedMemory(descriptor, range(places[0].rank, places[-1].rank + 1))
    finally:
        os.close(descriptor)
