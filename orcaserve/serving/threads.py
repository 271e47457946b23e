"""Threads: for work that would hold up the event loop. What waits for them is bounded, and nobody's who has left."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from orcaserve.core.errors import InvalidRequest

N_THREADS = 2
MAX_WAITING_BYTES = 64 * 2**20  # of request bodies whose work waits or runs
LARGE = 2**18  # bytes of a body whose work takes much memory
T = TypeVar("T")
_libc = ctypes.CDLL(None)


class Threads:
    """Used from one event loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(N_THREADS, thread_name_prefix="prepare")
        self._free = asyncio.Semaphore(N_THREADS)
        self._waiting_bytes = 0

    async def run(self, work: Callable[[], T], n_bytes: int) -> T:
        """Run `work`, which holds `n_bytes` of a request, on a thread. A caller that is cancelled does not wait.

        Work whose caller was cancelled before it began is never begun. Raises InvalidRequest (503) if too much waits.
        """
        if self._waiting_bytes + n_bytes > MAX_WAITING_BYTES:
            raise InvalidRequest(None, "too many requests wait to be read", code="overloaded", status=503)
        self._waiting_bytes += n_bytes
        try:
            await self._free.acquire()
            loop = asyncio.get_running_loop()
            running = self._pool.submit(work if n_bytes < LARGE else lambda: _then_trim(work))
            # A thread is free again when its work is done, not when its caller has left.
            running.add_done_callback(lambda _: _call_soon(loop, self._free.release))
            return await asyncio.wrap_future(running)
        finally:
            self._waiting_bytes -= n_bytes

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _then_trim(work: Callable[[], T]) -> T:
    """Give back the memory that a large body took: the allocator would keep it, once for every thread."""
    try:
        return work()
    finally:
        if sys.platform == "linux" and hasattr(_libc, "malloc_trim"):
            _libc.malloc_trim(0)


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
        loop.call_soon_threadsafe(callback)
