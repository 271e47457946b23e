"""Setting: an engine to simulate, and how it is scheduled; run on as many workloads as one likes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orcaserve.core import ConfigError, Request, SamplingParams
from orcaserve.core.window import window_for
from orcaserve.scheduler.policies import PolicySettings, SchedulingPolicy, make_policy
from orcaserve.scheduler.scheduler import Scheduler
from orcaserve.simulation.cost import CostModel
from orcaserve.simulation.driver import simulate
from orcaserve.simulation.outcome import Outcome
from orcaserve.simulation.pipeline import Pipeline
from orcaserve.workload import Arrival


@dataclass(frozen=True, slots=True)
class Setting:
    """cost: of an iteration, which also says how many batches are in flight. The quantities of Algorithm 1: n_slots and
    max_bs. longest: tokens of the longest request that the model can run. policy: by its name, with what is
    request-level's or iteration-level's alone; see orcaserve/scheduler/policies/registry.py. window: of the model.
    sources: it has an encoder, which reads all input tokens of a request but the last.
    """

    cost: CostModel
    n_slots: int
    max_bs: int
    longest: int
    page_size: int = 1
    policy: str = "iteration-level"
    microbatch_size: int | None = None
    shortest_first: bool = True
    fairness: str = "none"
    batched_tokens: int | None = None
    target_itl: float | None = None
    window: int | None = None
    sources: bool = False

    def check(self) -> None:
        """Raises ConfigError if the policy could run nothing at all."""
        smallest = Request(0, [0], SamplingParams(max_tokens=1))
        if not self._scheduler(()).could_ever_fit(smallest):
            n_least = self._policy(()).most(smallest)
            text = f"{self.policy} reserves {n_least} slots for each request and there are {self.n_slots}"
            raise ConfigError("--scheduling-policy", text)

    def run(
        self,
        arrivals: Sequence[Arrival],
        on_progress: Callable[[int, int], None] | None = None,
        pipeline: Pipeline | None = None,
    ) -> Outcome:
        """Serve a workload. pipeline: a fresh one of this setting's cost, if its blocks are wanted afterwards."""
        return simulate(arrivals, self._scheduler(arrivals), pipeline or Pipeline(self.cost), on_progress)

    def _scheduler(self, arrivals: Sequence[Arrival]) -> Scheduler:
        window = window_for(self.window, self.n_slots, self.page_size)
        return Scheduler(
            self.n_slots,
            self.max_bs,
            self.cost.n_workers,
            self.page_size,
            self._policy(arrivals),
            window=window,
            sources=self.sources,
        )

    def _policy(self, arrivals: Sequence[Arrival]) -> SchedulingPolicy:
        def n_output(request: Request) -> int:
            """What an oracle knows. The driver numbers requests by their place in the workload."""
            return arrivals[request.id].n_output if arrivals else request.params.max_tokens

        settings = PolicySettings(
            self.cost.n_workers, self.longest, self.microbatch_size, self.shortest_first, n_output, self.fairness,
            self.batched_tokens, self.target_itl, whole=self.sources,
        )  # fmt: skip
        return make_policy(self.policy, settings)
