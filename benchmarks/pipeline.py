"""What does a pipeline of two one-thread workers give, against one worker with two threads?

    python benchmarks/pipeline.py [--gen N] [--rounds N] [--picture FILE.svg] [--out FILE.md]

The default model, requests that all generate the same number of tokens. 32 requests: the two batches in flight have 16
each, so weights are read for half as many requests at a time as one worker reads them for. 64 requests: with a max_bs
of 32 every batch is full; one worker may take all 64 at once, or 32 at a time. Two stages have 15 layers each, or as
many as the engine gives them, which counts the output head in the last one; with the paper's Select, which puts all
requests into the first batch if they fit, or with even batches, which is what the engine does.

Every round runs all ways in turn, each in an engine of its own; speeds are medians. Idle: the share of time that a
worker had nothing to do while some iteration was under way, from one more run that recorded it. `of one worker's`: of
the best of one worker's with as many requests.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from report import Line, add_line_argument, heading, table, write, write_lines

from orcaserve.checkpoint.locate import locate_model
from orcaserve.config import EngineConfig, KVConfig, ModelConfig, ParallelConfig, SchedulerConfig
from orcaserve.engine import host
from orcaserve.evaluation.measured_engine import MeasuredEngine
from orcaserve.process import SWITCH_INTERVAL
from orcaserve.scheduler.policies import EvenBatches, IterationLevelFCFS, SchedulingPolicy

GOAL = 1.0  # throughput of the pipeline over that of one worker
PROMPT = 32
RUNS = 2  # of one engine


@dataclass(frozen=True, slots=True)
class Way:
    name: str
    requests: int
    max_bs: int
    stages: int = 2
    split: tuple[int, ...] | None = None
    policy: Callable[[int], SchedulingPolicy] = EvenBatches


WAYS = (
    Way("one worker, 2 threads", 32, 32, stages=1),
    Way("2 stages of 15 layers, the paper's Select", 32, 32, 2, (15, 15), lambda n_workers: IterationLevelFCFS()),
    Way("2 stages of 15 layers", 32, 32, 2, (15, 15)),
    Way("2 stages as the engine cuts", 32, 32),
    Way("one worker, 2 threads", 64, 32, stages=1),
    Way("one worker, 2 threads", 64, 64, stages=1),
    Way("2 stages as the engine cuts", 64, 32),
)


def run(way: Way, gen: int, n_runs: int, trace: Path | None = None) -> list[float]:
    """Tokens per second of each run."""
    host.make_policy = lambda name, settings: way.policy(settings.n_workers)
    config = EngineConfig(
        ModelConfig(locate_model(None), "default", threads=2 // way.stages),
        KVConfig(n_slots=way.requests * 16 * (-(-(PROMPT + gen) // 16) + 1)),
        SchedulerConfig(max_bs=way.max_bs),
        ParallelConfig(way.stages, 1, way.split, timeline=trace),
    )
    with MeasuredEngine(config) as engine:
        engine.run(engine.random_prompts(way.requests, PROMPT), 8)
        runs = [engine.run(engine.random_prompts(way.requests, PROMPT), gen) for _ in range(n_runs)]
    return [way.requests * gen / one.seconds for one in runs]


def idle(way: Way, gen: int, picture: Path | None) -> str:
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "run.json")
        run(way, gen, 1, trace)
        if picture is not None:
            picture.write_text(trace.with_suffix(".svg").read_text())
        shares: dict[str, float] = json.loads(trace.read_text())["otherData"]["idle_shares"]
    return ", ".join(f"{worker} {share:.0%}" for worker, share in shares.items())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gen", type=int, default=96, help="tokens of each request (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of all ways in turn (default: %(default)s)")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="the schedule of the last way")
    parser.add_argument("--out", metavar="FILE")
    add_line_argument(parser)
    args = parser.parse_args(argv)
    sys.setswitchinterval(SWITCH_INTERVAL)  # as in an engine process
    speeds: dict[Way, list[float]] = {way: [] for way in WAYS}
    for _ in range(args.rounds):
        for way in WAYS:
            speeds[way] += run(way, args.gen, RUNS)
    medians = {way: median(speeds[way]) for way in WAYS}
    rows, lines = [], []
    for way, speed in medians.items():
        best = max(medians[other] for other in WAYS if other.stages == 1 and other.requests == way.requests)
        shares = idle(way, args.gen, args.picture if way is WAYS[-1] else None)
        rows.append([way.requests, way.max_bs, way.name, f"{speed:,.0f}", f"{min(speeds[way]):,.0f}",
                     f"{max(speeds[way]):,.0f}", f"{speed / best:.2f}", shares])  # fmt: skip
        if way.split is None and way.stages > 1:
            name = f"2 stages of 1 thread over 1 worker of 2, {way.requests} requests"
            lines.append(Line(name, "1.0", f"{speed / best:.2f}", "", "", speed / best >= GOAL))
    text = heading("A pipeline of two workers", __doc__)
    text += f"Requests of {PROMPT} input tokens and {args.gen} generated ones, prompts included.\n\n"
    columns = ["requests", "max_bs", "", "tokens/s", "slowest run", "quickest run", "of one worker's", "idle"]
    write(text + table(columns, rows), args.out)
    write_lines(lines, args.lines)
    return 0 if all(line.passed for line in lines) else 1


if __name__ == "__main__":
    raise SystemExit(main())
