"""What arrives when: traces, recorded or drawn. Standard library only."""

from orcaserve.workload.arrival import Arrival
from orcaserve.workload.paper import homogeneous_trace, paper_trace

__all__ = ["Arrival", "homogeneous_trace", "paper_trace"]
