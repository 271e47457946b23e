"""WatchedPlane: a data plane of which any thread can see whom this worker waits for."""

from __future__ import annotations

from orcaserve.data_plane.protocol import DataPlane, Floats, Incoming, Place


class _WatchedIncoming:
    def __init__(self, incoming: Incoming, plane: WatchedPlane, source: str) -> None:
        self._incoming, self._plane, self._source = incoming, plane, source

    def wait(self) -> Floats:
        self._plane.waits_for = self._source
        received = self._incoming.wait()
        self._plane.waits_for = ""
        return received


class WatchedPlane:
    """A DataPlane over another one.

    waits_for: names of the workers whose numbers are waited for, or who have yet to take ours; empty: of nobody. A wait
    that ends in an error stays: nothing follows it.
    """

    def __init__(self, plane: DataPlane, place: Place) -> None:
        self._plane = plane
        self.waits_for = ""
        stages, shards = range(place.n_stages), range(place.n_shards)
        names = {(s, r): Place(s, r, place.n_stages, place.n_shards).name for s in stages for r in shards}
        self._before, self._after = (names.get((place.stage + step, place.shard), "") for step in (-1, 1))
        self._beside = ", ".join(names[place.stage, shard] for shard in shards if shard != place.shard)

    def receive(self, n_rows: int, width: int) -> Incoming:
        return _WatchedIncoming(self._plane.receive(n_rows, width), self, self._before)

    def send(self, rows: Floats) -> None:
        self.waits_for = self._after
        self._plane.send(rows)
        self.waits_for = ""

    def all_reduce(self, x: Floats, n_next: int = 0) -> None:
        self.waits_for = self._beside
        self._plane.all_reduce(x, n_next)
        self.waits_for = ""

    def gather(self, own: Floats, widths: list[int]) -> Floats | None:
        self.waits_for = self._beside
        gathered = self._plane.gather(own, widths)
        self.waits_for = ""
        return gathered

    def close(self) -> None:
        self._plane.close()
