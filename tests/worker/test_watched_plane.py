"""Whom a worker waits for, seen while it does."""

from __future__ import annotations

import numpy as np
import pytest

from orcaserve.data_plane.protocol import Floats, Place
from orcaserve.worker.watched_plane import WatchedPlane


class Sums:
    waiting = False


class Plane:
    """Notes what is seen of the watched one from within each call."""

    def __init__(self) -> None:
        self.watched: WatchedPlane
        self.sums = Sums()
        self.seen: list[str] = []

    def _look(self) -> Floats:
        self.seen.append(self.watched.waits_for)
        return np.zeros((1, 1), np.float32)

    def receive(self, n_rows: int, width: int) -> Plane:
        self._look()
        return self

    def wait(self) -> Floats:
        return self._look()

    def send(self, rows: Floats) -> None:
        self._look()

    def all_reduce(self, x: Floats, n_next: int = 0) -> None:
        self._look()

    def gather(self, own: Floats, widths: list[int]) -> Floats | None:
        return self._look()

    def send_to(self, rank: int, rows: Floats) -> None: ...

    def receive_from(self, rank: int, n_rows: int, width: int) -> Floats:
        return np.zeros((n_rows, width), np.float32)

    def close(self) -> None: ...


PLACES = (
    (Place(1, 2, 3, 3), "s0r2", "s2r2", "s1r0, s1r1"),
    (Place(0, 0, 1, 2), "", "", "s0r1"),
    (Place(1, 0, 2, 1), "s0r0", "", ""),
)


@pytest.mark.parametrize(("place", "before", "after", "beside"), PLACES)
def test_names(place: Place, before: str, after: str, beside: str) -> None:
    plane, rows = Plane(), np.zeros((1, 1), np.float32)
    watched = plane.watched = WatchedPlane(plane, place)
    incoming = watched.receive(1, 1)
    assert incoming.wait().shape == (1, 1)
    watched.send(rows)
    watched.all_reduce(rows)
    assert watched.gather(rows, [1]) is not None
    assert plane.seen == ["", before, after, beside, beside], "to begin to receive is no wait"
    assert watched.waits_for == ""
    plane.sums.waiting = True
    assert watched.waits_for == beside, "kernels wait without a call"
