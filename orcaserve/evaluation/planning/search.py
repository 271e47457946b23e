"""The search: which max_bs, and how few slots, carry the most load within a target. By simulation, load after load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil

from orcaserve.evaluation.planning.engine import PlannedEngine
from orcaserve.evaluation.targets import Metric, Target
from orcaserve.simulation.outcome import WARM_UP, Outcome
from orcaserve.simulation.setting import Setting
from orcaserve.workload import Arrival
from orcaserve.workload.named import Workload

BATCHES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
MUCH = 1e6  # requests/s: all at once
LOWEST = 0.02  # of what can be carried: the load under which a target that is missed cannot be met at all
STEPS = 6
DRAWN = (0.2, 0.4, 0.6, 0.75, 0.87, 0.95, 1.05)  # loads of a picture, as shares of the capacity
LEAST_BATCHES = 8  # requests of a run, as a multiple of max_bs
AS_GOOD = 0.99  # of the most load: what counts as no loss
FEWER = 0.75  # n_slots, from one try to the next


@dataclass(frozen=True, slots=True)
class Try:
    """One load. rate: offered, requests/s. served: likewise, as they ended. of_bound: what the target is about, as a
    share of its bound; of several targets the one that is nearest to being missed, or furthest beyond."""

    rate: float
    served: float
    of_bound: float

    @property
    def misses(self) -> bool:
        return self.of_bound > 1.0


@dataclass(frozen=True, slots=True)
class Carried:
    """One setting. most: the highest load within the target, None if there is none. breaks: the lowest that misses it;
    None if that is beyond the capacity: requests a second when all wait. tries: in order of the load.
    """

    max_bs: int
    n_slots: int
    most: Try | None
    breaks: Try | None
    capacity: float
    tries: Sequence[Try] = field(default_factory=tuple)

    @property
    def load(self) -> float:
        return 0.0 if self.most is None else self.most.rate


def measured(outcome: Outcome, target: Target) -> float:
    """Seconds that the target's share of the requests (or gaps) do not exceed; what is refused counts as endless."""
    lives = outcome.lives[int(len(outcome.lives) * WARM_UP) :]
    values: list[float] = []
    for life in lives:
        if life.refused is not None:
            values.append(float("inf"))
        elif target.metric is Metric.TTFT:
            values.append(life.first_token_seconds)
        elif target.metric is Metric.E2E:
            values.append(life.latency)
        elif target.metric is Metric.NORMALIZED:
            values.append(life.normalised_latency)
        else:
            values += [b - a for a, b in pairwise(life.token_times)]
    values.sort()
    return values[max(ceil(len(values) * target.share), 1) - 1] if values else 0.0


class Search:
    """Over one engine, workload and list of targets, all of which must be met.

    on_setting: called before a setting is tried, with what is tried.
    """

    def __init__(
        self,
        engine: PlannedEngine,
        workload: Workload,
        targets: Sequence[Target],
        seed: int = 0,
        on_setting: Callable[[str], None] = lambda text: None,
    ) -> None:
        assert targets
        self._engine, self._workload, self._targets, self._seed = engine, workload, targets, seed
        self._on_setting = on_setting

    def best(self) -> tuple[Carried, list[Carried]]:
        """The best setting, and one for each max_bs that was tried. Of equals the one with the smaller max_bs."""
        tried: list[Carried] = []
        best: Carried | None = None
        worse = 0
        for max_bs in BATCHES:
            if max_bs > self._engine.largest_batch or worse == 2:
                break
            carried = self.carried(max_bs, self._engine.n_slots)
            tried.append(carried)
            if best is None or carried.load * AS_GOOD > best.load:
                best, worse = carried, 0
            elif best.load > 0:
                worse += 1
        assert best is not None
        return (self._fewest_slots(best) if best.most is not None else best), tried

    def carried(self, max_bs: int, n_slots: int) -> Carried:
        """The most load that this setting carries within the targets: by halving, up to its capacity."""
        self._on_setting(f"max_bs {max_bs}, {n_slots:,} slots")
        capacity = self._run(max_bs, n_slots, MUCH).served
        tries = [self._run(max_bs, n_slots, capacity * LOWEST), self._run(max_bs, n_slots, capacity)]
        low, high = tries
        if low.misses:
            return Carried(max_bs, n_slots, None, low, capacity, tries)
        if high.misses:
            for _ in range(STEPS):
                middle = self._run(max_bs, n_slots, (low.rate + high.rate) / 2)
                tries.append(middle)
                low, high = (low, middle) if middle.misses else (middle, high)
        tries.sort(key=lambda t: t.rate)
        if not high.misses:
            return Carried(max_bs, n_slots, high, None, capacity, tries)
        return Carried(max_bs, n_slots, low, high, capacity, tries)

    def drawn(self, carried: Carried) -> Carried:
        """With tries all along the load, for a picture."""
        rates = [share * carried.capacity for share in DRAWN]
        more = [self._run(carried.max_bs, carried.n_slots, rate) for rate in rates]
        return replace(carried, tries=sorted([*carried.tries, *more], key=lambda one: one.rate))

    def _fewest_slots(self, best: Carried) -> Carried:
        """With as few slots as lose no load."""
        while True:
            n_slots = int(best.n_slots * FEWER) // self._engine.page_size * self._engine.page_size
            if n_slots < max(arrival.n_input + arrival.asked for arrival in self._arrivals(1.0)):
                return best
            self._on_setting(f"max_bs {best.max_bs}, {n_slots:,} slots")
            assert best.most is not None
            at_most = self._run(best.max_bs, n_slots, best.most.rate)
            if at_most.misses or at_most.served < best.most.served * AS_GOOD:
                return best
            best = Carried(best.max_bs, n_slots, at_most, best.breaks, best.capacity, best.tries)

    def _run(self, max_bs: int, n_slots: int, rate: float) -> Try:
        engine = self._engine
        setting = Setting(engine.cost, n_slots, max_bs, engine.context_length, engine.page_size)
        outcome = setting.run(self._arrivals(rate, max_bs))
        share = max(measured(outcome, target) / target.bound for target in self._targets)
        return Try(rate, outcome.summary().throughput, share)

    def _arrivals(self, rate: float, max_bs: int = 0) -> Sequence[Arrival]:
        """A short run of large batches shows no queue, so it is made longer where requests are drawn."""
        workload = self._workload
        if not workload.source.timed:
            workload = replace(workload, n=max(workload.n, max_bs * LEAST_BATCHES))
        return workload.arrivals(rate, self._seed)
