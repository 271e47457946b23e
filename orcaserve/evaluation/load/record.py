"""Record: what became of one request."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from orcaserve.evaluation.latency import quantile
from orcaserve.evaluation.targets import Metric, Target
from orcaserve.workload import Arrival

UNFINISHED = "unfinished when the run was ended"


@dataclass(slots=True)
class Record:
    """One request, filled as it goes. Times are seconds since the run began.

    due: when it should have been sent; in a closed loop that is when it was. events: when each piece of text came.
    input_tokens, output_tokens: as the server counts them, if it does. error: why it failed, in few words, the same for
    all that failed alike; None for one that is whole. detail: what the server said about it.
    """

    index: int
    arrival: Arrival
    due: float
    sent: float
    events: array[float] = field(default_factory=lambda: array("d"))
    end: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = UNFINISHED
    detail: str = ""

    @property
    def whole(self) -> bool:
        return self.error is None

    @property
    def n_output(self) -> int:
        """Tokens that it generated: by the server's count, else one for each piece of text."""
        return len(self.events) if self.output_tokens is None else self.output_tokens

    @property
    def lateness(self) -> float:
        return self.sent - self.due

    def latencies(self, metric: Metric) -> Sequence[float]:
        """Of a whole request: one number, or for ITL one for each gap."""
        assert self.end is not None
        match metric:
            case Metric.TTFT:
                return [(self.events[0] if self.events else self.end) - self.sent]
            case Metric.ITL:
                return [later - earlier for earlier, later in pairwise(self.events)]
            case Metric.E2E:
                return [self.end - self.sent]
            case Metric.NORMALIZED:
                return [(self.end - self.sent) / self.n_output]

    def meets(self, target: Target) -> bool:
        """Alone: its own latency, for ITL the quantile of its own gaps."""
        latencies = self.latencies(target.metric)
        return not latencies or quantile(latencies, target.share) <= target.bound
