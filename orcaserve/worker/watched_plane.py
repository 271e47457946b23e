"""WatchedPlane: a data plane of which any thread can see whom this worker waits for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from orcaserve.data_plane.protocol import DataPlane, Floats, Incoming, Place


class _WatchedIncoming:
    def __init__(self, incoming: Incoming, plane: WatchedPlane, source: str) -> None:
        self._incoming, self._plane, self._source = incoming, plane, source

    def wait(self) -> Floats:
        with self._plane.waiting(self._source):
            return self._incoming.wait()


class WatchedPlane:
    """A DataPlane over another one.

    waits_for: names of the workers whose numbers are waited for, or who have yet to take ours; empty: of nobody. A wait
    that ends in an error stays: nothing follows it.
    """

    def __init__(self, plane: DataPlane, place: Place) -> None:
        self._plane, self.sums = plane, plane.sums
        self._waits_for = ""
        stages, shards = range(place.n_stages), range(place.n_shards)
        names = {(s, r): Place(s, r, place.n_stages, place.n_shards).name for s in stages for r in shards}
        self._before, self._after = (names.get((place.stage + step, place.shard), "") for step in (-1, 1))
        self._beside = ", ".join(names[place.stage, shard] for shard in shards if shard != place.shard)

    @property
    def waits_for(self) -> str:
        return self._beside if self.sums is not None and self.sums.waiting else self._waits_for

    @contextmanager
    def waiting(self, names: str) -> Iterator[None]:
        self._waits_for = names
        yield
        self._waits_for = ""

    def receive(self, n_rows: int, width: int) -> Incoming:
        return _WatchedIncoming(self._plane.receive(n_rows, width), self, self._before)

    def send(self, rows: Floats) -> None:
        with self.waiting(self._after):
            self._plane.send(rows)

    def all_reduce(self, x: Floats, n_next: int = 0) -> None:
        with self.waiting(self._beside):
            self._plane.all_reduce(x, n_next)

    def gather(self, own: Floats, widths: list[int]) -> Floats | None:
        with self.waiting(self._beside):
            return self._plane.gather(own, widths)

    def send_to(self, rank: int, rows: Floats) -> None:
        self._plane.send_to(rank, rows)

    def receive_from(self, rank: int, n_rows: int, width: int) -> Floats:
        return self._plane.receive_from(rank, n_rows, width)

    def close(self) -> None:
        self._plane.close()
