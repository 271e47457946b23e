"""Watching a cut model, to choose its exact inputs (native/exact_inputs.py) as they are chosen for a whole one.

However the model is cut, for this each worker takes a run of whole layers, and the runs stand in a ring. So the
arithmetic is the whole model's, to the bit, and so is the choice, while no worker has more than a run at a time. Sums
over shards, which are added up in another order, would sooner or later give other texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from orcaserve.data_plane.protocol import DataPlane, Floats, Place
from orcaserve.model.part import share
from orcaserve.model.spec import ModelSpec
from orcaserve.native import _kernels
from orcaserve.native.exact_inputs import Chosen, none_chosen, watch
from orcaserve.native.model import NativeModel


def runs_of_layers(stages: Sequence[range], n_shards: int) -> list[range]:
    """The layers that each worker watches, by rank: its stage's, shared among the shards. Some may have none."""
    runs = []
    for stage in stages:
        n = min(n_shards, len(stage))
        own = [share(len(stage), shard, n) for shard in range(n)]
        runs += [range(stage.start + run.start, stage.start + run.stop) for run in own]
        runs += [range(stage.stop, stage.stop)] * (n_shards - n)
    return runs


def choose_together(
    model: NativeModel | None,
    team: _kernels.Team,
    spec: ModelSpec,
    runs: Sequence[range],
    place: Place,
    plane: DataPlane,
) -> Chosen:
    """All workers call this, and all have the result. model: of this worker's run; None if it has none."""
    own = none_chosen(spec)
    if model is not None:
        members = [rank for rank, run in enumerate(runs) if run]
        own = watch(model, team, _Ring(plane, members, place.rank) if len(members) > 1 else None)
    return _share(own, place, plane)


class _Ring:
    """The Others of a worker."""

    def __init__(self, plane: DataPlane, members: Sequence[int], rank: int) -> None:
        i = members.index(rank)
        self._plane, self._before, self._after = plane, members[i - 1], members[(i + 1) % len(members)]

    def receive(self, n_rows: int, width: int) -> Floats:
        return self._plane.receive_from(self._before, n_rows, width)

    def send(self, rows: Floats) -> None:
        self._plane.send_to(self._after, rows)


def _share(own: Chosen, place: Place, plane: DataPlane) -> Chosen:
    """Everybody's rows, of which all but one worker's are -1, through the first worker. As floats they are exact."""
    numbers = own.astype(np.float32)
    others = range(1, place.n_ranks)
    if place.rank == 0:
        for rank in others:
            np.maximum(numbers, plane.receive_from(rank, *numbers.shape), out=numbers)
        for rank in others:
            plane.send_to(rank, numbers)
    else:
        plane.send_to(0, numbers)
        numbers = plane.receive_from(0, *numbers.shape)
    return cast(Chosen, numbers.astype(np.int32))
