"""Policies by the names that users know them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orcaserve.core import Request
from orcaserve.scheduler.policies.base import SchedulingPolicy
from orcaserve.scheduler.policies.cellular import Cellular
from orcaserve.scheduler.policies.even_batches import EvenBatches
from orcaserve.scheduler.policies.orca_max import OrcaMax
from orcaserve.scheduler.policies.orca_oracle import OrcaOracle
from orcaserve.scheduler.policies.orca_pow2 import OrcaPow2
from orcaserve.scheduler.policies.output_length import most_output
from orcaserve.scheduler.policies.overcommit import Overcommit
from orcaserve.scheduler.policies.request_level import RequestLevel


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """All that any policy is made of.

    n_workers: batches in flight. longest: tokens (input + output) of the longest request that the model can run.
    microbatch_size, shortest_first: see RequestLevel. n_output: how much a request generates, as far as it is known.
    """

    n_workers: int
    longest: int
    microbatch_size: int | None = None
    shortest_first: bool = True
    n_output: Callable[[Request], int] = most_output


POLICIES: Mapping[str, Callable[[PolicySettings], SchedulingPolicy]] = {
    "iteration-level": lambda s: EvenBatches(s.n_workers),
    "request-level": lambda s: RequestLevel(s.longest, s.microbatch_size, s.shortest_first),
    "cellular": lambda s: Cellular(),
    "orca-max": lambda s: OrcaMax(s.n_workers, s.longest),
    "orca-pow2": lambda s: OrcaPow2(s.n_workers, s.longest, s.n_output),
    "orca-oracle": lambda s: OrcaOracle(s.n_workers, s.n_output),
    "overcommit": lambda s: Overcommit(s.n_workers),
}


def make_policy(name: str, settings: PolicySettings) -> SchedulingPolicy:
    """A new policy, for one scheduler. The name is one of POLICIES."""
    return POLICIES[name](settings)
