"""Memory for weights: 64-byte aligned, in huge pages where the system has them.

A matrix of a small model is smaller than a huge page, so matrices are cut from chunks one after another. Nothing of a
chunk takes memory before it is written to; it is freed when no array is left in it.
"""

from __future__ import annotations

import contextlib
import mmap
from threading import Lock

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_LINE = 64  # bytes of a cache line
_HUGE_PAGE = 2 << 20
_CHUNK = 64 << 20


class _Chunks:
    def __init__(self) -> None:
        self._lock = Lock()
        self._free: Bytes = np.empty(0, np.uint8)  # the rest of the last chunk

    def take(self, n_bytes: int) -> Bytes:
        rounded = -(-n_bytes // _LINE) * _LINE
        if rounded >= _CHUNK:
            return _map(rounded)[:n_bytes]
        with self._lock:
            if rounded > len(self._free):
                self._free = _map(_CHUNK)
            taken, self._free = self._free[:n_bytes], self._free[rounded:]
        return taken

    def begin_anew(self) -> None:
        with self._lock:
            self._free = np.empty(0, np.uint8)


def _map(n_bytes: int) -> Bytes:
    """Fresh memory that begins at a multiple of a huge page."""
    memory = mmap.mmap(-1, n_bytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.uint8)
    start = -array.ctypes.data % _HUGE_PAGE
    return array[start : start + n_bytes]


_chunks = _Chunks()


def allocate(n_rows: int, n_columns: int) -> Bytes:
    """Bytes [n_rows, n_columns], all zero."""
    return _chunks.take(n_rows * n_columns).reshape(n_rows, n_columns)


def begin_anew() -> None:
    """After many arrays have been let go: what was allocated with them is not kept for the rest of a chunk."""
    _chunks.begin_anew()
