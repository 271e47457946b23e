"""Independent runs, on as many processes as there are cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def each(function: Callable[[_In], _Out], items: Sequence[_In], n_processes: int) -> Iterator[_Out]:
    """function(item) for all items, in their order; in this process if n_processes is 1. It must be importable."""
    if n_processes <= 1 or len(items) <= 1:
        yield from map(function, items)
        return
    with ProcessPoolExecutor(min(n_processes, len(items)), get_context("spawn")) as pool:
        yield from pool.map(function, items)
