"""Scheduling policies: one small class for each way to choose the next batch."""

from orcaserve.scheduler.policies.base import SchedulingPolicy
from orcaserve.scheduler.policies.even_batches import EvenBatches
from orcaserve.scheduler.policies.iteration_level import IterationLevelFCFS

__all__ = ["EvenBatches", "IterationLevelFCFS", "SchedulingPolicy"]
