"""What runs next: request pool, slot ledger, policies, the scheduler and its loop."""

from orcaserve.scheduler.loop import IterationLoop
from orcaserve.scheduler.policies import IterationLevelFCFS, SchedulingPolicy
from orcaserve.scheduler.request_pool import RequestPool
from orcaserve.scheduler.scheduler import Scheduler
from orcaserve.scheduler.slot_ledger import SlotLedger

__all__ = ["IterationLevelFCFS", "IterationLoop", "RequestPool", "Scheduler", "SchedulingPolicy", "SlotLedger"]
