"""Arrival: one request of a workload, by its sizes alone."""

from __future__ import annotations

from dataclasses import dataclass

from orcaserve.core.terms import USUAL, Terms


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that comes `time` seconds after the workload's start.

    n_input: tokens of its prompt. n_output: tokens that it generates, whoever serves it. max_tokens: the most that its
    client asks for, n_output or more, which is all that a server knows beforehand; None = n_output. terms: on which it
    is to be served.
    """

    time: float
    n_input: int
    n_output: int
    max_tokens: int | None = None
    terms: Terms = USUAL

    def __post_init__(self) -> None:
        assert self.time >= 0 and self.n_input >= 1 and self.n_output >= 1
        assert self.max_tokens is None or self.max_tokens >= self.n_output

    @property
    def asked(self) -> int:
        """The most tokens that its client lets it generate."""
        return self.n_output if self.max_tokens is None else self.max_tokens
