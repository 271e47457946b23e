"""The data plane of a worker some of whose neighbours are on its machine and some on others."""

from __future__ import annotations

from collections.abc import Sequence

from orcaserve.data_plane.protocol import DataPlane, Floats, Incoming, Place


class MixedPlane:
    """A DataPlane that takes the near road to a worker of this machine, the far one to others.

    ranks: of this machine's workers. A stage whose shards are on several machines sums over the far one.
    """

    def __init__(self, place: Place, ranks: range, near: DataPlane, far: DataPlane) -> None:
        def road(others: Sequence[int]) -> DataPlane:
            return near if all(rank in ranks for rank in others) else far

        self._before = road([place.rank_of(place.stage - 1, place.shard)])
        self._after = road([place.rank_of(place.stage + 1, place.shard)])
        self._shards = road([place.rank_of(place.stage, shard) for shard in range(place.n_shards)])
        self._both = near, far
        self._ranks = ranks
        self.sums = self._shards.sums

    def receive(self, n_rows: int, width: int) -> Incoming:
        return self._before.receive(n_rows, width)

    def send(self, rows: Floats) -> None:
        self._after.send(rows)

    def all_reduce(self, x: Floats, n_next: int = 0) -> None:
        self._shards.all_reduce(x, n_next)

    def gather(self, own: Floats, widths: list[int]) -> Floats | None:
        return self._shards.gather(own, widths)

    def send_to(self, rank: int, rows: Floats) -> None:
        self._both[rank not in self._ranks].send_to(rank, rows)

    def receive_from(self, rank: int, n_rows: int, width: int) -> Floats:
        return self._both[rank not in self._ranks].receive_from(rank, n_rows, width)

    def close(self) -> None:
        for road in self._both:
            road.close()
