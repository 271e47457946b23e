"""WatchedPlane: a data plane of which any thread can see whom this worker waits for."""

from __future__ import annotations

from orcaserve.data_plane.protocol import DataPlane, Floats, Incoming, Place


class _WatchedIncoming:
    def __init__(self, incoming: Incoming, plane: WatchedPlane, source: str) -> None:
        self._incoming, self._plane, self._source = incoming, plane, source

    def wait(self) -> Floats:
        self._plane.awaited = self._source
        received = self._incoming.wait()
        self._plane.awaited = ""
        return received


class WatchedPlane:
    """A DataPlane over another one.

    awaited: names of the workers whose numbers a call waits for, or who have yet to take ours; empty: of nobody. A wait
    that ends in an error stays: nothing follows it.
    """

    def __init__(self, plane: DataPlane, place: Place) -> None:
        self._plane, self.sums = plane, plane.sums
        self.awaited = ""
        stages, shards = range(place.n_stages), range(place.n_shards)
        names = {(s, r): Place(s, r, place.n_stages, place.n_shards).name for s in stages for r in shards}
        self._before, self._after = (names.get((place.stage + step, place.shard), "") for step in (-1, 1))
        self._beside = ", ".join(names[place.stage, shard] for shard in shards if shard != place.shard)

    @property
    def waits_for(self) -> str:
        """As `awaited`, of the kernels' own sums too."""
        return self._beside if self.sums is not None and self.sums.waiting else self.awaited

    def receive(self, n_rows: int, width: int) -> Incoming:
        return _WatchedIncoming(self._plane.receive(n_rows, width), self, self._before)

    def send(self, rows: Floats) -> None:
        self.awaited = self._after
        self._plane.send(rows)
        self.awaited = ""

    def all_reduce(self, x: Floats, n_next: int = 0) -> None:
        self.awaited = self._beside
        self._plane.all_reduce(x, n_next)
        self.awaited = ""

    def gather(self, own: Floats, widths: list[int]) -> Floats | None:
        self.awaited = self._beside
        gathered = self._plane.gather(own, widths)
        self.awaited = ""
        return gathered

    def send_to(self, rank: int, rows: Floats) -> None:
        self._plane.send_to(rank, rows)

    def receive_from(self, rank: int, n_rows: int, width: int) -> Floats:
        return self._plane.receive_from(rank, n_rows, width)

    def close(self) -> None:
        self._plane.close()
