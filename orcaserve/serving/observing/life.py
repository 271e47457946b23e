"""Life: when what became of a choice. All times are seconds on this process's monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Life:
    """arrival: when its request was here as a whole; submitted: when the choice was handed to the engine.

    begun: when its first batch was chosen; first_token, last_token: when they came here; ended: when it was over, for
    the reason `reason`. None, or 0 of a token, is what has not happened.
    n_cached: of its input tokens, those whose keys and values were there already.
    """

    arrival: float
    submitted: float
    begun: float | None = None
    first_token: float = 0.0
    last_token: float = 0.0
    ended: float | None = None
    reason: str = ""
    n_cached: int = 0

    @property
    def waited(self) -> float | None:
        """Seconds from arrival to its first batch (others say: in the queue)."""
        return None if self.begun is None else self.begun - self.arrival

    @property
    def initiation(self) -> float | None:
        """Seconds from its first batch to its first token (others say: prefill)."""
        return self.first_token - self.begun if self.begun is not None and self.first_token else None

    @property
    def increments(self) -> float | None:
        """Seconds from its first token to its last (others say: decode)."""
        return self.last_token - self.first_token if self.first_token else None
