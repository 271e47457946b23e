"""What an engine tells of itself while it runs: its schedule as lines, and a description of its live requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

MOST_DESCRIBED = 1000  # live requests of an engine: its loop does nothing else meanwhile


class LiveState(Enum):
    """What a live request is doing, for people."""

    WAITING = "waiting"  # for its first batch, or to start anew; holds nothing
    INITIATION = "initiation"  # in a batch that reads its input, or a piece of it
    INCREMENT = "increment"  # in a batch that gives it a token
    PAUSED = "paused"  # has keys and values, and is in no batch now


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """One live request. age: seconds since it came. n_reserved, n_used: slots set aside for it, and those that hold a
    token. why_waiting: why it is not in a batch, in words for its operator; empty if it is in one.
    """

    id: int
    state: LiveState
    age: float
    n_input: int
    n_output: int
    n_reserved: int = 0
    n_used: int = 0
    why_waiting: str = ""


@dataclass(frozen=True, slots=True)
class LiveRequests:
    """In order of arrival, those in batches first if not all are told. n_left_out: how many are not."""

    requests: Sequence[LiveRequest]
    n_left_out: int = 0


class Sink(Protocol):
    """Where lines of a schedule log go. None of it waits for anybody."""

    def write(self, lines: bytes) -> None:
        """Whole lines, each with its end."""

    def next_part(self, header: bytes) -> None:
        """What follows belongs to a new part, which begins so."""

    def close(self) -> None: ...
