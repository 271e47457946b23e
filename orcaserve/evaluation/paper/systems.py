"""The paper's systems, as scheduler, policy and cost together: what its figures compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orcaserve.scheduler import IterationLevelFCFS, Scheduler, SchedulingPolicy
from orcaserve.scheduler.policies import RequestLevel
from orcaserve.simulation.driver import simulate
from orcaserve.simulation.models import PAPER_MODELS
from orcaserve.simulation.outcome import Outcome
from orcaserve.simulation.paper import FASTER_TRANSFORMER, ORCA, paper_cost, paper_slots
from orcaserve.simulation.pipeline import Pipeline
from orcaserve.workload import Arrival


@dataclass(frozen=True, slots=True)
class System:
    """Orca, or FasterTransformer behind a serving layer that hands it whole batches.

    microbatch: requests that FasterTransformer sends through the pipeline together; None: this is Orca.
    """

    max_bs: int
    microbatch: int | None = None

    @property
    def label(self) -> str:
        return f"orca({self.max_bs})" if self.microbatch is None else f"ft({self.max_bs},{self.microbatch})"

    def run(self, model: str, arrivals: Sequence[Arrival]) -> Outcome:
        """Serve a workload with one of the paper's models, on its devices."""
        factors = ORCA if self.microbatch is None else FASTER_TRANSFORMER
        cost = paper_cost(model, factors)
        scheduler = Scheduler(paper_slots(model), self.max_bs, cost.n_workers, policy=self._policy(model))
        return simulate(arrivals, scheduler, Pipeline(cost))

    def _policy(self, model: str) -> SchedulingPolicy:
        if self.microbatch is None:
            return IterationLevelFCFS()
        return RequestLevel(PAPER_MODELS[model][0].context_length, self.microbatch)


ORCA_SYSTEMS = tuple(map(System, (1, 8, 16, 32)))
FT_SYSTEMS = (System(1, 1), System(8, 8))
