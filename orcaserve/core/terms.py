"""Terms: on which terms a request is served. Beside its sizes this is all that selection looks at."""

from __future__ import annotations

import math
from dataclasses import dataclass

from orcaserve.core.errors import InvalidRequest

MAX_NAME = 256  # characters of a client's name and of a salt
MIN_PRIORITY, MAX_PRIORITY = -(2**31), 2**31 - 1
MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0
MAX_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class Terms:
    """Checked: raises InvalidRequest that names the field.

    client: to whom its tokens are charged; empty: to nobody in particular, who is a client like any other.
    weight: how many times the tokens of a client of weight 1 this client may have while both have work waiting.
    priority: who has a lower one is admitted first, whatever the clients (0 is usual).
    background: it fills what others leave, and gives way to them at once; lines of batches are such.
    cache_salt: keys and values are shared among requests with the same salt only.
    timeout, first_token: seconds after its arrival by which it has to have ended, and to have its first token; what
    cannot is not begun. between_tokens: seconds that there may be between two tokens, on the average. None: no limit.
    """

    client: str = ""
    weight: float = 1.0
    priority: int = 0
    background: bool = False
    cache_salt: str = ""
    timeout: float | None = None
    first_token: float | None = None
    between_tokens: float | None = None

    def __post_init__(self) -> None:
        for name, text in (("user", self.client), ("cache_salt", self.cache_salt)):
            if len(text) > MAX_NAME:
                raise InvalidRequest(name, f"{name} must have at most {MAX_NAME} characters")
        if not MIN_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise InvalidRequest("priority", f"priority must be an integer from {MIN_PRIORITY} to {MAX_PRIORITY}")
        if not MIN_WEIGHT <= self.weight <= MAX_WEIGHT:
            raise InvalidRequest("weight", f"a client's weight must be from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")
        for name in ("timeout", "first_token", "between_tokens"):
            seconds = getattr(self, name)
            if seconds is not None and not (math.isfinite(seconds) and 0 < seconds <= MAX_SECONDS):
                raise InvalidRequest(name, f"{name} must be more than 0 and at most {MAX_SECONDS:g} seconds")


USUAL = Terms()
