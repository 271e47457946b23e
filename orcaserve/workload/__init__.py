"""What arrives when: traces, recorded or drawn. Standard library only."""

from orcaserve.workload.arrival import Arrival

__all__ = ["Arrival"]
