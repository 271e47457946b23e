"""Timeline: what each worker did when, as a trace for Perfetto and Chrome and as a picture."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orcaserve.core.spans import COMPUTE, SAMPLE, IterationSpans
from orcaserve.engine.timeline_picture import Block, draw

MOST_RECORDS = 100_000  # iterations of a worker; older ones are forgotten
PICTURE_ITERATIONS = 16

_log = logging.getLogger(__name__)
_BUSY = (COMPUTE, SAMPLE)


class _Record(NamedTuple):
    worker: str
    spans: IterationSpans


class Timeline:
    """Records what workers report, from any thread.

    path: where `write` writes, or None: nothing is wanted.
    clock_errors: of workers whose clock is another machine's, by how many nanoseconds their times may be off at most.
    """

    def __init__(self, workers: Sequence[str], path: Path | None) -> None:
        self.clock_errors: dict[str, int] = {}
        self._path = path
        self._workers = list(workers)
        self._records: deque[_Record] = deque(maxlen=MOST_RECORDS)
        self._lock = threading.Lock()

    def add(self, worker: str, spans: IterationSpans) -> None:
        with self._lock:
            self._records.append(_Record(worker, spans))

    def idle_shares(self) -> dict[str, float]:
        """Of every worker, the share of time without work while some iteration was under way on any worker."""
        with self._lock:
            records = list(self._records)
        flights: dict[int, tuple[int, int]] = {}
        busy = dict.fromkeys(self._workers, 0)
        for worker, record in records:
            for span in record.spans:
                if span.name in _BUSY:
                    busy[worker] += span.end - span.start
                    start, end = flights.get(record.iteration, (span.start, span.end))
                    flights[record.iteration] = min(start, span.start), max(end, span.end)
        total = _covered(flights.values())
        return {worker: 1 - n / total if total else 0.0 for worker, n in busy.items()}

    @property
    def wanted(self) -> bool:
        return self._path is not None

    def write(self) -> None:
        """Once, the trace and beside it the picture. A file that cannot be written is logged, and no failure."""
        path, self._path = self._path, None
        if path is None:
            return
        shares = self.idle_shares()
        try:
            _write(path, json.dumps(self._trace()))
            _write(path.with_suffix(".svg"), draw(self._workers, self._blocks(), shares, self._clock_note()))
        except OSError as error:
            _log.error("the timeline cannot be written: %s", error)
        else:
            text = ", ".join(f"{worker} {share:.1%}" for worker, share in shares.items())
            _log.info("timeline in %s; idle: %s%s", path, text, self._clock_note())

    def _trace(self) -> dict[str, Any]:
        """Chrome's trace events: a thread for every worker, microseconds since the first span."""
        with self._lock:
            records = list(self._records)
        origin = min((span.start for record in records for span in record.spans.spans), default=0)
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": i, "args": {"name": f"worker {worker}"}}
            for i, worker in enumerate(self._workers)
        ]
        for worker, record in records:
            about = {"iteration": record.iteration, "requests": record.n_requests, "tokens": record.n_tokens}
            place: dict[str, Any] = {"ph": "X", "pid": 1, "tid": self._workers.index(worker), "args": about}
            events += [
                {
                    **place,
                    "name": f"{span.name} {record.iteration}",
                    "cat": span.name,
                    "ts": (span.start - origin) / 1000,
                    "dur": (span.end - span.start) / 1000,
                }
                for span in record.spans
            ]
        about_all: dict[str, Any] = {"idle_shares": self.idle_shares()}
        if self.clock_errors:
            about_all["clock_error_ms"] = {worker: error / 1e6 for worker, error in self.clock_errors.items()}
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about_all}

    def _clock_note(self) -> str:
        """Behind other words; empty if all workers share a clock."""
        if not self.clock_errors:
            return ""
        return f"; times of other machines are right to {max(self.clock_errors.values()) / 1e6:.2f} ms"

    def _blocks(self) -> list[Block]:
        """The work of some iterations in the middle of the run."""
        with self._lock:
            records = list(self._records)
        numbers = sorted({record.spans.iteration for record in records})
        first = max((len(numbers) - PICTURE_ITERATIONS) // 2, 0)
        shown = set(numbers[first : first + PICTURE_ITERATIONS])
        return [
            Block(worker, record.iteration, span.start, span.end, record.n_requests, record.n_tokens)
            for worker, record in records
            if record.iteration in shown
            for span in record.spans
            if span.name in _BUSY
        ]


def _write(path: Path, text: str) -> None:
    """All of it or nothing. Raises OSError."""
    try:
        path.write_text(text)
    except OSError:
        if path.is_file():  # and no device, say
            path.unlink()
        raise


def _covered(intervals: Iterable[tuple[int, int]]) -> int:
    """Length of the union of intervals."""
    total, reached = 0, 0
    for start, end in sorted(intervals):
        total += max(end - max(start, reached), 0)
        reached = max(reached, end)
    return total
