"""Among: which one a worker is among the workers of its engine on this machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Among:
    """Worker `index`, from 0, of `n_workers`."""

    index: int = 0
    n_workers: int = 1


ALONE = Among()
