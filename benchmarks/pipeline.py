"""What does a pipeline of two one-thread workers give, against one worker with two threads?

    python benchmarks/pipeline.py [--batch N] [--gen N] [--rounds N] [--picture FILE.svg] [--out FILE.md]

The default model, requests that all generate the same number of tokens. Ways to run it: one worker; two stages of 15
layers each, with the paper's Select, which puts all requests into the first batch if they fit, and with even batches,
which is what the engine does; and with a split that makes up for the output head in the last stage. Idle: the share of
time that a worker had nothing to do while some iteration was under way.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from report import Line, add_line_argument, heading, table, write, write_lines

from orcaserve.checkpoint.locate import locate_model
from orcaserve.config import EngineConfig, KVConfig, ModelConfig, ParallelConfig
from orcaserve.engine import host
from orcaserve.evaluation.measured_engine import MeasuredEngine
from orcaserve.scheduler.policies import EvenBatches, IterationLevelFCFS, SchedulingPolicy

GOAL = 1.0  # throughput of the pipeline over that of one worker
PROMPT = 32


@dataclass(frozen=True, slots=True)
class Way:
    name: str
    threads: int
    split: tuple[int, ...]
    policy: Callable[[int], SchedulingPolicy] = EvenBatches


WAYS = (
    Way("one worker, 2 threads", 2, (30,)),
    Way("2 stages, the paper's Select", 1, (15, 15), lambda n_workers: IterationLevelFCFS()),
    Way("2 stages, even batches", 1, (15, 15)),
    Way("2 stages of 19 and 11 layers, even batches", 1, (19, 11)),
)


def measure(way: Way, batch: int, gen: int, rounds: int, picture: Path | None) -> tuple[float, dict[str, float]]:
    """Tokens per second, the median of all rounds, and every worker's idle share."""
    host.make_policy = lambda name, settings: way.policy(settings.n_workers)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "run.json")
        config = EngineConfig(
            ModelConfig(locate_model(None), "default", threads=way.threads),
            KVConfig(n_slots=batch * 16 * (-(-(PROMPT + gen) // 16) + 1)),
            parallel=ParallelConfig(len(way.split), 1, way.split, timeline=trace),
        )
        with MeasuredEngine(config) as engine:
            engine.run(engine.random_prompts(batch, PROMPT), 4)
            runs = [engine.run(engine.random_prompts(batch, PROMPT), gen) for _ in range(rounds)]
        if picture is not None:
            picture.write_text(trace.with_suffix(".svg").read_text())
        shares: dict[str, float] = json.loads(trace.read_text())["otherData"]["idle_shares"]
    return median(batch * gen / run.seconds for run in runs), shares


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, default=32, help="requests at once (default: %(default)s)")
    parser.add_argument("--gen", type=int, default=64, help="tokens of each (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="the schedule of the last way")
    parser.add_argument("--out", metavar="FILE")
    add_line_argument(parser)
    args = parser.parse_args(argv)
    rows, speeds = [], []
    for way in WAYS:
        picture = args.picture if way is WAYS[-1] else None
        speed, shares = measure(way, args.batch, args.gen, args.rounds, picture)
        speeds.append(speed)
        idle = ", ".join(f"{worker} {share:.0%}" for worker, share in shares.items())
        rows.append([way.name, f"{speed:,.0f}", f"{speed / speeds[0]:.2f}", idle])
    ratio = max(speeds[2:]) / speeds[0]
    text = heading("A pipeline of two workers", __doc__)
    text += f"{args.batch} requests of {PROMPT} input tokens and {args.gen} generated ones, prompts included.\n\n"
    text += table(["", "tokens/s", "of one worker's", "idle"], rows)
    write(text, args.out)
    line = Line("2 stages of 1 thread over 1 worker of 2", "1.0", f"{ratio:.2f}", "", "", ratio >= GOAL)
    write_lines([line], args.lines)
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main())
