"""Which machine runs which workers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from orcaserve.config import NodesConfig
from orcaserve.data_plane.protocol import Place


def deal(places: Sequence[Place], nodes: NodesConfig) -> list[list[Place]]:
    """The places of each machine: a run of them, stage by stage, so that shards of a stage are together if they can be.

    As many as `counts` says, or as even as they come out, more on the first machines.
    """
    each, rest = divmod(len(places), nodes.n_nodes)
    counts = nodes.counts or [each + (i < rest) for i in range(nodes.n_nodes)]
    return [list(places[start:stop]) for start, stop in pairwise(accumulate(counts, initial=0))]
