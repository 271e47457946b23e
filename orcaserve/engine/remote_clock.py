"""RemoteClock: how far another machine's clock is ahead of this one's, by asking it the time, as NTP does."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from orcaserve.core.spans import IterationSpans, Span

KEPT = 64  # exchanges
DRIFT = 1e-4  # of the time since an exchange: two clocks of 50 ppm each, apart at worst


@dataclass(frozen=True, slots=True)
class Exchange:
    """In nanoseconds. By our clock: when the question was sent and the answer returned. By the other: when the question
    was received and replied to.
    """

    sent: int
    received: int
    replied: int
    returned: int

    @property
    def offset(self) -> int:
        """By how much the other clock is ahead, if both ways take equally long."""
        return (self.received - self.sent + self.replied - self.returned) // 2

    @property
    def error(self) -> int:
        """So far may that be from the truth: one way may have taken all of the round trip, and the other nothing."""
        return (self.returned - self.sent - (self.replied - self.received) + 1) // 2


class RemoteClock:
    """Used from any thread.

    n_exchanges: that it has been given. worst: the largest error of any offset that it gave out, in nanoseconds.
    """

    def __init__(self) -> None:
        self.n_exchanges = 0
        self.worst = 0
        self._kept: deque[Exchange] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def add(self, exchange: Exchange) -> None:
        with self._lock:
            self._kept.append(exchange)
            self.n_exchanges += 1

    def offset(self, at: int) -> tuple[int, int]:
        """(offset, error) for a time `at` of the other clock, by the exchange with the least error there: a short one,
        and one of long ago only if those since took much longer. There must have been one.
        """

        def error_of(exchange: Exchange) -> int:
            return exchange.error + round(DRIFT * abs(at - exchange.received))

        with self._lock:
            best = min(self._kept, key=error_of)
            error = error_of(best)
            self.worst = max(self.worst, error)
            return best.offset, error

    def to_ours(self, spans: IterationSpans) -> IterationSpans:
        """What the other machine did, by our clock. Lengths stay as they are."""
        if not spans.spans:
            return spans
        offset, _ = self.offset(spans.spans[0].start)
        moved = [Span(span.name, span.start - offset, span.end - offset) for span in spans.spans]
        return IterationSpans(spans.iteration, spans.n_requests, spans.n_tokens, moved)
