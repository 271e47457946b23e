"""IterationSpans: what a worker did in an iteration, and when. Recorded only if somebody asked for a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

RECEIVE = "receive"  # waited for the hidden states of the stage before
COMPUTE = "compute"  # ran its layers, sums over shards included
SAMPLE = "sample"  # gathered the logits and chose tokens
FORWARD = "forward"  # passed the control message on; on another thread than the others


class Span(NamedTuple):
    """Times in nanoseconds of a machine's monotonic clock, which all its processes share."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class IterationSpans:
    iteration: int
    n_requests: int
    n_tokens: int
    spans: Sequence[Span]
