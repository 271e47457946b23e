"""Shape: lengths of a workload made to fit a model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orcaserve.workload.arrival import Arrival


@dataclass(frozen=True, slots=True)
class Shape:
    """Lengths are multiplied by `scale`, rounded, then cut to the most that each side may have."""

    scale: float = 1.0
    max_input: int | None = None
    max_output: int | None = None

    def apply(self, arrival: Arrival) -> Arrival:
        n_output = self._fit(arrival.n_output, self.max_output)
        asked = None if arrival.max_tokens is None else max(self._fit(arrival.max_tokens, self.max_output), n_output)
        return replace(arrival, n_input=self._fit(arrival.n_input, self.max_input), n_output=n_output, max_tokens=asked)

    def _fit(self, tokens: int, most: int | None) -> int:
        scaled = max(round(tokens * self.scale), 1)
        return scaled if most is None else min(scaled, most)


UNCHANGED = Shape()
