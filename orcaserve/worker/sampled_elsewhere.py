"""SampledElsewhere: the Sampler of a worker that chooses no tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orcaserve.core import SamplingParams


class SampledElsewhere:
    """Admits and drops without a trace."""

    def admit(
        self,
        request_id: int,
        input_ids: Sequence[int],
        params: SamplingParams,
        stop_ids: frozenset[int],
        seed: int,
        output: Sequence[int],
    ) -> None: ...
    def drop(self, request_ids: Iterable[int]) -> None: ...
    def prepare(self) -> None: ...
