"""ScheduleRecorder: turns what the scheduler was asked and has answered into lines of a schedule log."""

from __future__ import annotations

import json
import os
import threading
import time as clock
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from orcaserve.core import USUAL, Batch, IterationResult, Phase, Progress, Request, Sink, Terms
from orcaserve.schedule_log.format import KIND, SAME, VERSION, Settings, as_runs
from orcaserve.scheduler.policies import Selection, Stop
from orcaserve.scheduler.recorder import NOTHING, Standing, increments_first

FLUSH_BYTES, FLUSH_SECONDS = 32 * 1024, 0.25
ENDLESS = 2**63  # bytes of a part that ends only when it is asked to
MOST_CLIENTS = 65536  # that are known by their numbers; then they are numbered anew


@dataclass(frozen=True, slots=True)
class Run:
    """One life of a scheduler. start: seconds of the wall clock; zero: the same moment on the loop's clock."""

    name: str
    start: float
    zero: float

    @classmethod
    def beginning(cls, now: float) -> Run:
        """now: what the loop's clock says."""
        start = clock.time()
        return cls(f"{start:.3f}-{os.getpid()}", start, now)


class ScheduleRecorder:
    """A Recorder. While the device waits it only keeps what it is given; lines are made when a turn is over.

        recorder = ScheduleRecorder(settings, sink)
        recorder.begin()                        # at the run's beginning; in its midst: begin(how things stand)

    part_bytes: size after which another part begins. now: the loop's clock. run: whose schedule it is, if others record
    it too. n_parts: how many parts there were before. flush_seconds: how long lines wait while batches are in flight.
    """

    def __init__(
        self,
        settings: Settings,
        sink: Sink,
        part_bytes: int,
        now: Callable[[], float] = clock.monotonic,
        run: Run | None = None,
        n_parts: int = 0,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        self.sink = sink
        self._settings, self._part_bytes = settings, part_bytes
        self._now, self._run = now, run or Run.beginning(now())
        self._zero = self._run.zero
        self._part = n_parts
        self._flush_seconds = flush_seconds
        self._events: list[Callable[[], None]] = []
        self._lines: list[str] = []
        self._n_bytes = self._n_waiting = 0  # of this part; of lines that were not yet handed to the sink
        self._flushed = self._zero
        self._live: dict[int, Request] = {}
        self._batches: dict[int, Batch] = {}  # in flight
        self._last: list[int] = []  # those of the batch that returned last, as far as they have not ended
        self._clients: dict[str, int] = {}
        self._n_clients = 0
        self._lock = threading.Lock()  # `close` comes from another thread
        self._closed = False

    def begin(self, standing: Standing = NOTHING) -> None:
        """Begin a part where things stand so. What was recorded before that is told first."""
        with self._lock:
            if self._closed:
                return
            self._make_lines()
            self._flush(self._now())
            self._live = {request.id: request for request in standing.live}
            self._batches = {batch.iteration: batch for batch in standing.in_flight}
            self._last = list(standing.last)
            self._begin_part()

    def arrived(self, request: Request, time: float) -> None:
        self._events.append(lambda: self._arrived(request, time))

    def refused(self, request: Request, time: float, why: str) -> None:
        self._events.append(lambda: self._add(f'["x",{self._at(time)},{request.id},{json.dumps(why)}]'))

    def cancelled(self, request_id: int, time: float, news: Sequence[Progress]) -> None:
        self._events.append(lambda: self._add(f'["c",{self._at(time)},{request_id}{self._ends(news, ",")}]'))

    def expired(self, news: Sequence[Progress], time: float) -> None:
        self._events.append(lambda: self._add(f'["d",{self._at(time)}{self._ends(news, ",")}]'))

    def handed_out(self, batch: Batch, selection: Selection, n_reserved: int, n_used: int, time: float) -> None:
        self._events.append(lambda: self._handed_out(batch, selection, n_reserved, n_used, time))

    def returned(self, result: IterationResult, news: Sequence[Progress], time: float) -> None:
        self._events.append(lambda: self._returned(result, news, time))

    def turn_over(self, time: float) -> None:
        with self._lock:
            if self._closed:
                return
            self._make_lines()
            if self._n_waiting > FLUSH_BYTES or time - self._flushed > self._flush_seconds or not self._batches:
                self._flush(time)
                if self._n_bytes > self._part_bytes:
                    self._begin_part()

    def ended(self, news: Sequence[Progress], time: float) -> None:
        self._close(news, time)

    def close(self) -> None:
        """Write what there is, for nothing more will come. From any thread; idempotent."""
        self._close((), self._now())

    def _close(self, news: Sequence[Progress], time: float) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._make_lines()
                self._add(f'["z",{self._at(time)}{self._ends(news, ",")}]')
                self._flush(time)
                self.sink.close()

    def _make_lines(self) -> None:
        events, self._events = self._events, []
        for make in events:
            make()

    def _arrived(self, request: Request, time: float) -> None:
        self._live[request.id] = request
        terms = self._terms(request.terms)
        rest = ""
        if request.n_carried or request.stop_ids or terms:
            rest = f",{request.n_carried},{int(bool(request.stop_ids))}"
        if terms:
            rest += "," + json.dumps(terms, separators=(",", ":"))
        sizes = f"{request.n_input},{request.params.max_tokens}"
        self._add(f'["a",{self._at(time)},{request.id},{sizes}{rest}]')

    def _terms(self, terms: Terms) -> dict[str, object]:
        """Those that are not usual, with a number in place of the client's name."""
        if terms is USUAL:
            return {}
        told: dict[str, object] = {"client": self._client(terms.client)} if terms.client else {}
        for name in ("weight", "priority", "background", "timeout", "first_token"):
            if (value := getattr(terms, name)) != getattr(USUAL, name):
                told[name] = value
        return told

    def _client(self, name: str) -> int:
        number = self._clients.get(name)
        if number is None:
            if len(self._clients) == MOST_CLIENTS:
                self._clients.clear()
            self._n_clients += 1
            number = self._clients[name] = self._n_clients
        return number

    def _handed_out(self, batch: Batch, selection: Selection, n_reserved: int, n_used: int, time: float) -> None:
        self._batches[batch.iteration] = batch
        increments, initiations = [], []
        for entry in batch.entries:
            if entry.phase is Phase.INCREMENT:
                increments.append(entry.request_id)
            else:
                to_come = f",{entry.n_to_come}" if entry.n_to_come else ""
                initiations.append(f"[{entry.request_id},{len(entry.tokens)}{to_come}]")
        who = SAME if increments == self._last and increments else as_runs(increments)
        rest = ""
        if selection.stop is not Stop.NOBODY_WAITS or selection.preempted:
            rest = f',"{selection.stop.value}"'
            if selection.n_lacking or selection.preempted:
                rest += f",{selection.n_lacking}"
            if selection.preempted:
                rest += f",{[request.id for request in selection.preempted]}"
        head = f'["b",{self._at(time)},{batch.iteration},"{who}"'
        self._add(f"{head},[{','.join(initiations)}],{n_reserved},{n_used}{rest}{_prefixes(batch)}]")

    def _returned(self, result: IterationResult, news: Sequence[Progress], time: float) -> None:
        batch = self._batches.pop(result.iteration)
        ends = self._ends(news, ",")
        failing = f",{list(result.failures)}" if result.failures else ""
        if failing and not ends:
            ends = ",[]"
        live = self._live
        self._last = [request_id for request_id in increments_first(batch) if request_id in live]
        self._add(f'["r",{self._at(time)},{result.iteration},{round(result.seconds * 1e6)}{ends}{failing}]')

    def _ends(self, news: Sequence[Progress], comma: str) -> str:
        """Who ended, as a list; nothing if nobody did."""
        ends = [
            f'[{each.request_id},"{each.finish_reason.value}",{len(request.output)}]'
            for each in news
            if each.finish_reason is not None and (request := self._live.pop(each.request_id, None)) is not None
        ]
        return f"{comma}[{','.join(ends)}]" if ends else ""

    def _at(self, time: float) -> int:
        return round((time - self._zero) * 1e6)

    def _add(self, line: str) -> None:
        self._lines.append(line)
        self._n_waiting += len(line) + 1

    def _flush(self, time: float) -> None:
        self._flushed = time
        if self._lines:
            self._lines.append("")
            self.sink.write("\n".join(self._lines).encode())
            self._lines.clear()
            self._n_bytes += self._n_waiting
            self._n_waiting = 0

    def _begin_part(self) -> None:
        self._part += 1
        header: dict[str, object] = {
            "kind": KIND,
            "version": VERSION,
            "run": self._run.name,
            "part": self._part,
            "start": round(self._run.start, 6),
            "settings": asdict(self._settings),
        }
        if self._part > 1:
            header["live"] = [
                [r.id, r.n_input, r.params.max_tokens, r.n_carried, int(bool(r.stop_ids)), len(r.output)]
                + ([terms] if (terms := self._terms(r.terms)) else [])
                for r in self._live.values()
            ]
            header["in_flight"] = [
                [number, [entry.request_id for entry in batch.entries]] for number, batch in self._batches.items()
            ]
            header["last"] = self._last
        line = json.dumps(header, separators=(",", ":")) + "\n"
        self._n_bytes = len(line)
        self.sink.next_part(line.encode())


def _prefixes(batch: Batch) -> str:
    """What requests took of others and left to others, as the last field; nothing if they did neither."""
    cached = [
        f'[{entry.request_id},{len(prefix.tokens)},"{as_runs(prefix.blocks)}",{prefix.copied}]'
        for entry in batch.entries
        if (prefix := entry.prefix) is not None
    ]
    if not cached and not batch.kept:
        return ""
    kept = [f"[{each.request_id},{each.first_block},{each.n},{each.twin}]" for each in batch.kept]
    members = [f'"{name}":[{",".join(rows)}]' for name, rows in (("cached", cached), ("kept", kept)) if rows]
    return ",{" + ",".join(members) + "}"
