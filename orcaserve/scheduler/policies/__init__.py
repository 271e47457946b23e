"""Scheduling policies: one small class for each way to choose the next batch."""

from orcaserve.scheduler.policies.base import SchedulingPolicy, Selection, Stop
from orcaserve.scheduler.policies.cellular import Cellular
from orcaserve.scheduler.policies.even_batches import EvenBatches
from orcaserve.scheduler.policies.iteration_level import IterationLevelFCFS
from orcaserve.scheduler.policies.many_users import ManyUsers
from orcaserve.scheduler.policies.orca_max import OrcaMax
from orcaserve.scheduler.policies.orca_oracle import OrcaOracle
from orcaserve.scheduler.policies.orca_pow2 import OrcaPow2
from orcaserve.scheduler.policies.overcommit import Overcommit
from orcaserve.scheduler.policies.registry import ORDERS, POLICIES, PolicySettings, make_policy
from orcaserve.scheduler.policies.request_level import RequestLevel

__all__ = [
    "ORDERS",
    "POLICIES",
    "Cellular",
    "EvenBatches",
    "IterationLevelFCFS",
    "ManyUsers",
    "OrcaMax",
    "OrcaOracle",
    "OrcaPow2",
    "Overcommit",
    "PolicySettings",
    "RequestLevel",
    "SchedulingPolicy",
    "Selection",
    "Stop",
    "make_policy",
]
