"""What does the schedule log cost an iteration, in time and in bytes?

The scheduler runs the paper's trace (input U(32, 512), output U(1, 128)) with a full batch, and a real log is written
beside it, as the loop does it. Two things are timed, per iteration, as medians:

    in the way   while the device waits: what has happened is noted
    beside       while the device runs: lines are made of it and handed to the thread that writes

    python benchmarks/schedule_log_cost.py [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from scheduler_cost import ITERATION_SECONDS, LONGEST, PAGE_SIZE, Arrivals

from orcaserve.core import IterationResult
from orcaserve.schedule_log.format import Settings
from orcaserve.schedule_log.reader import read_log
from orcaserve.schedule_log.recorder import ScheduleRecorder
from orcaserve.schedule_log.rotating_file import RotatingFile
from orcaserve.scheduler import Scheduler
from orcaserve.simulation.reproduce import reproduce

LIMIT_PERCENT = 1.0
WAITING = 100


@dataclass(frozen=True)
class Row:
    max_bs: int
    in_the_way_us: float
    beside_us: float
    percent: float  # of the iteration, both together
    bytes_per_iteration: float


def measure(max_bs: int, iterations: int, folder: Path) -> Row:
    path = folder / f"{max_bs}.log"
    n_slots = max_bs * (LONGEST + PAGE_SIZE)
    settings = Settings("iteration-level", max_bs, n_slots, PAGE_SIZE, 1, LONGEST)
    scheduler = Scheduler(n_slots, max_bs, 1, PAGE_SIZE)
    recorder = ScheduleRecorder(settings, RotatingFile(path, 1), 2**40)
    recorder.begin()
    arrivals = Arrivals(seed=max_bs)

    def arrive() -> None:
        request = next(arrivals)
        scheduler.add(request, time.monotonic())
        recorder.arrived(request, request.arrival)

    for _ in range(max_bs + WAITING):
        arrive()
    in_the_way, beside = [], []
    for _ in range(iterations):
        batch = scheduler.next_batch()
        assert batch is not None
        now, started = time.monotonic(), time.perf_counter()
        recorder.handed_out(batch, scheduler.selection, scheduler.n_reserved, scheduler.n_used, now)
        noted = time.perf_counter()
        recorder.turn_over(now)
        made = time.perf_counter()
        result = IterationResult(batch.iteration, [7] * len(batch.entries), seconds=ITERATION_SECONDS)
        news = scheduler.complete(result)
        now, again = time.monotonic(), time.perf_counter()
        recorder.returned(result, news, now)
        in_the_way.append(noted - started + time.perf_counter() - again)
        beside.append(made - noted)
        for each in news:
            if each.finish_reason is not None:
                arrive()
    recorder.ended([], time.monotonic())
    found = reproduce(read_log(path))
    assert (found.n_same, found.difference) == (iterations, None)
    way, along = statistics.median(in_the_way), statistics.median(beside)
    percent = (way + along) / ITERATION_SECONDS * 100
    return Row(
        max_bs,
        round(way * 1e6, 2),
        round(along * 1e6, 2),
        round(percent, 3),
        round(path.stat().st_size / iterations, 1),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost of the schedule log for each iteration.")
    parser.add_argument("--iterations", type=int, default=5_000)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for max_bs in (1, 8, 32, 64):
            gc.collect()
            rows.append(measure(max_bs, args.iterations, Path(folder)))
    within = all(row.percent < LIMIT_PERCENT for row in rows)
    if args.json:
        facts = {"python": platform.python_version(), "iteration_ms": ITERATION_SECONDS * 1e3}
        print(json.dumps({**facts, "rows": [asdict(row) for row in rows], "within": within}))
    else:
        print(f"| max_bs | in the way us | beside us | % of {ITERATION_SECONDS * 1e3:g} ms | bytes/iteration |")
        print("|---|---|---|---|---|")
        for row in rows:
            print(
                f"| {row.max_bs} | {row.in_the_way_us} | {row.beside_us} | {row.percent:.2f} "
                f"| {row.bytes_per_iteration} |"
            )
        print(f"\nbelow {LIMIT_PERCENT:g} % of an iteration in every row: {'yes' if within else 'NO'}")
    return 0 if within else 1


if __name__ == "__main__":
    raise SystemExit(main())
