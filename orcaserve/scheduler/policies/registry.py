"""Policies by the names that users know them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orcaserve.core import Request
from orcaserve.scheduler.iteration_bound import IterationBound, WholeInitiations
from orcaserve.scheduler.iteration_cost import IterationCost
from orcaserve.scheduler.order import FirstCome, Order
from orcaserve.scheduler.policies.base import SchedulingPolicy
from orcaserve.scheduler.policies.cellular import Cellular
from orcaserve.scheduler.policies.many_users import ManyUsers
from orcaserve.scheduler.policies.orca_max import OrcaMax
from orcaserve.scheduler.policies.orca_oracle import OrcaOracle
from orcaserve.scheduler.policies.orca_pow2 import OrcaPow2
from orcaserve.scheduler.policies.output_length import most_output
from orcaserve.scheduler.policies.overcommit import Overcommit
from orcaserve.scheduler.policies.request_level import RequestLevel
from orcaserve.scheduler.token_fair import TokenFair


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """All that any policy is made of.

    n_workers: batches in flight. longest: tokens (input + output) of the longest request that the model can run.
    microbatch_size, shortest_first: see RequestLevel. n_output: how much a request generates, as far as it is known.
    Of iteration-level alone: fairness: how clients share, a name of ORDERS. batched_tokens: most input tokens of an
    iteration, at least max_bs; target_itl: seconds that there are to be between two tokens. None: no bound. whole: an
    initiation is never fed in pieces.
    """

    n_workers: int
    longest: int
    microbatch_size: int | None = None
    shortest_first: bool = True
    n_output: Callable[[Request], int] = most_output
    fairness: str = "none"
    batched_tokens: int | None = None
    target_itl: float | None = None
    whole: bool = False


ORDERS: Mapping[str, Callable[[], Order]] = {"none": FirstCome, "tokens": TokenFair}


def _many_users(settings: PolicySettings) -> ManyUsers:
    """With several stages a token comes when its batch has been through all of them, each of which takes as long."""
    cost, order = IterationCost(), ORDERS[settings.fairness]
    seconds = None if settings.target_itl is None else settings.target_itl / settings.n_workers
    bound = None
    if settings.batched_tokens is not None or seconds is not None:
        bounded_by = WholeInitiations if settings.whole else IterationBound
        bound = bounded_by(settings.batched_tokens, seconds, cost)
    return ManyUsers(settings.n_workers, order(), order(), bound, cost)


POLICIES: Mapping[str, Callable[[PolicySettings], SchedulingPolicy]] = {
    "iteration-level": _many_users,
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
