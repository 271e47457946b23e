"""Account: what became of a request, for its line in the log and for its trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from orcaserve.core import Request
from orcaserve.serving.observing.life import Life


class Outcome(Protocol):
    """A choice, as far as it is told of. n_output: tokens it has."""

    @property
    def request(self) -> Request: ...
    @property
    def life(self) -> Life: ...
    @property
    def n_output(self) -> int: ...


@dataclass(slots=True)
class Account:
    """Filled while the request is served; times are seconds on the monotonic clock.

    received: when its header was here. route: as the table of routes has it; empty if there is none. quiet: it asks for
    nothing but how the server is. status: of the answer; 0 if none was begun. code: of the error, if there was one.
    n_prompt: tokens of its prompts, each counted once.
    """

    received: float
    route: str = ""
    quiet: bool = False
    status: int = 0
    code: str = ""
    n_prompt: int = 0
    choices: list[Outcome] = field(default_factory=list)

    @property
    def n_output(self) -> int:
        return sum(choice.n_output for choice in self.choices)

    @property
    def finish_reasons(self) -> list[str]:
        return [choice.life.reason for choice in self.choices]

    @property
    def queue(self) -> float | None:
        """Seconds from arrival until the first of its choices was in a batch."""
        return self._earliest(lambda life: life.waited)

    @property
    def first_token(self) -> float | None:
        """Seconds from arrival to its first token."""
        return self._earliest(lambda life: life.first_token - life.arrival if life.first_token else None)

    def _earliest(self, read: Callable[[Life], float | None]) -> float | None:
        return min((seconds for c in self.choices if (seconds := read(c.life)) is not None), default=None)
