"""ScheduleSink: lines of the schedule on their way to the endpoint, never more than some megabytes of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

MOST_ON_THE_WAY = 4 * 2**20  # bytes that wait for an endpoint which does not read


class ScheduleSink:
    """A Sink. Lines that find no room are lost, and so is all that follows, up to the next part.

    send: takes lines, at once, on any thread. Whoever has sent them says so by `sent`.
    """

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._n_waiting = 0
        self._lost = False

    def write(self, lines: bytes) -> None:
        with self._lock:
            if not self._lost:
                self._put(lines)

    def next_part(self, header: bytes) -> None:
        with self._lock:
            self._lost = False
            self._put(header)

    def close(self) -> None: ...

    def rest(self) -> None:
        """Nobody wants any more for now, so nothing has been lost."""
        with self._lock:
            self._lost = False

    def sent(self, n_bytes: int) -> bool:
        """So much less is on its way. True if something was lost and nothing waits: now another part may begin."""
        with self._lock:
            self._n_waiting -= n_bytes
            return self._lost and not self._n_waiting

    def _put(self, lines: bytes) -> None:
        if self._n_waiting and self._n_waiting + len(lines) > MOST_ON_THE_WAY:
            self._lost = True
            return
        self._n_waiting += len(lines)
        self._send(lines)
