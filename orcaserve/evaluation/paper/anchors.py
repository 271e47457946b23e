"""The numbers that the paper's comparison stands on, each out of runs of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from orcaserve.evaluation.paper import published
from orcaserve.evaluation.paper.figure import Table
from orcaserve.evaluation.paper.figure9 import N_OUTPUT, milliseconds
from orcaserve.evaluation.paper.parallel import each
from orcaserve.evaluation.paper.sweep import Load, Search, Task, capacity, most_within
from orcaserve.evaluation.paper.systems import FT_SYSTEMS, System

SEEDS = (0, 1, 2)
FT_REQUESTS, ORCA_REQUESTS = 1500, 3000  # of a run


@dataclass(frozen=True, slots=True)
class Anchors:
    """Names as in the report's JSON. FasterTransformer with the better of its settings, each time."""

    orca_175b_ms_per_token_fig9c: float
    ft_101b_peak_req_s: float
    ft_175b_at_190ms_req_s: float
    orca_175b_at_190ms_req_s: float

    @property
    def ratio_at_190ms(self) -> float:
        return self.orca_175b_at_190ms_req_s / self.ft_175b_at_190ms_req_s

    def as_json(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in published.BANDS}


def measure_anchors(n_processes: int, n_requests: float = 1.0, seeds: Sequence[int] = SEEDS) -> Anchors:
    """n_requests: factor of how many requests a run has; less is quicker, and coarser. seeds: of the traces."""
    ft_load, orca_load = Load(round(FT_REQUESTS * n_requests)), Load(round(ORCA_REQUESTS * n_requests))
    per_token = milliseconds("175b", "orca", 128, 32)
    assert per_token is not None
    peaks = each(capacity, [Task("101b", system, ft_load) for system in FT_SYSTEMS], n_processes)
    ft_peak = max(peaks)
    tasks = [Task("175b", System(32), orca_load), *[Task("175b", system, ft_load) for system in FT_SYSTEMS]]
    searches = [Search(task, seed, published.TARGET_MS) for task in tasks for seed in seeds]
    found = list(each(most_within, searches, n_processes))
    n = len(seeds)
    orca, *fts = [fmean(found[at : at + n]) for at in range(0, len(found), n)]
    return Anchors(per_token / N_OUTPUT, ft_peak, max(fts), orca)


def anchors_table(anchors: Anchors) -> Table:
    """Beside the paper's, with the bands in which they count as reproduced."""
    texts = {
        "orca_175b_ms_per_token_fig9c": ("Orca, 175B, 128 input tokens, batch 32: ms/token", 95.0),
        "ft_101b_peak_req_s": ("FasterTransformer, 101B: most req/s", published.FT_PEAK),
        "ft_175b_at_190ms_req_s": ("FasterTransformer, 175B: req/s at 190 ms", published.FT_AT_TARGET),
        "orca_175b_at_190ms_req_s": ("Orca, 175B: req/s at 190 ms", published.ORCA_AT_TARGET),
        "ratio_at_190ms": ("ratio of the two at 190 ms", published.RATIO),
    }
    rows = []
    for name, value in anchors.as_json().items():
        low, high = published.BANDS[name]
        text, paper = texts[name]
        held = "yes" if low <= value <= high else "NO"
        rows.append([text, f"{value:.3g}", f"{paper:.3g}", f"{low:.3g} to {high:.3g}", held])
    return Table("Anchors", ["", "here", "the paper's", "accepted", "held"], rows)
