"""Comments in event streams that have nothing to say, lest somebody on the way takes a connection for dead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from orcaserve.serving.http import Exchange

KEEP_ALIVE = b": keep-alive\n\n"  # which clients of event streams pass over
N_LOOKS = 8  # in the time that a stream may be silent


async def keep_alive(streams: Callable[[], Iterable[Exchange]], silence: float) -> None:
    """For ever: whatever stream has sent nothing for `silence` seconds sends a comment, at most an eighth later."""
    while True:
        await asyncio.sleep(silence / N_LOOKS)
        before = time.monotonic() - silence
        for exchange in streams():
            if exchange.may_write and exchange.last_write <= before:
                exchange.write_events(KEEP_ALIVE)
