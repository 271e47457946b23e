"""Scheduling policies: one small class for each way to choose the next batch."""

from orcaserve.scheduler.policies.base import SchedulingPolicy
from orcaserve.scheduler.policies.iteration_level import IterationLevelFCFS

__all__ = ["IterationLevelFCFS", "SchedulingPolicy"]
