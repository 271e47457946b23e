"""How many streamed tokens a second does `orcaserve bench serve` take from one core, and what of the core does it need?

    python benchmarks/load_generator.py [--out FILE.md]

A stand-in server (stand_in_server.py) sends a token to all streams at once every few milliseconds, as a server that
batches them does; the generator runs on one core, the server on the others. It is no bottleneck as long as it reads the
whole rate, sees gaps as long as they are, and has core to spare.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from report import Line, add_line_argument, heading, mark, table, write, write_lines
from server import started

GOAL = 2000.0  # tokens a second
STREAMS = 64
RATES = (1000, 2000, 4000, 8000)


@dataclass(frozen=True, slots=True)
class Result:
    """rate: tokens a second that the server sent (None: as fast as they were read); taken: those that were read."""

    rate: float | None
    taken: float
    gap_ms: float
    gap_ms_p50: float
    gap_ms_p99: float
    cpu_share: float
    warning: str | None


def measure(rate: float | None, seconds: float) -> Result:
    cores = sorted(os.sched_getaffinity(0))
    gap_ms = 0.0 if rate is None else STREAMS / rate * 1e3
    tokens = round(seconds * (rate or 20_000) / STREAMS)
    script = str(Path(__file__).parent / "stand_in_server.py")
    others = ",".join(map(str, cores[1:] or cores))
    with started(["taskset", "-c", others, sys.executable, script, "--gap", str(gap_ms)], "/v1/models") as server:
        load = ["--concurrency", str(STREAMS), "--n", str(STREAMS), "--workload", f"homogeneous:64:{tokens}", "--json"]
        command = ["taskset", "-c", str(cores[0]), sys.executable, "-m", "orcaserve", "bench", "serve", server.base]
        done = subprocess.run([*command, *load], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert found["whole"] == STREAMS, found["errors"]
    facts = found["generator"]
    itl = found["itl_ms"]
    return Result(rate, found["output_tok_s"], gap_ms, itl["p50"], itl["p99"], facts["cpu_share"], facts["warning"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="of each rate")
    parser.add_argument("--out")
    add_line_argument(parser)
    args = parser.parse_args()
    results = [measure(rate, args.seconds) for rate in (*RATES, None)]
    at_goal = next(result for result in results if result.rate == GOAL)
    passed = at_goal.taken >= 0.99 * GOAL and at_goal.cpu_share < 0.5 and at_goal.warning is None
    text = heading("The load generator", __doc__)
    text += f"At {GOAL:,.0f} tokens/s over {STREAMS} streams: {at_goal.cpu_share:.0%} of a core: {mark(passed)}.\n\n"
    columns = ["sent tokens/s", "read tokens/s", "of a core", "gap ms", "seen p50", "seen p99", "its own warning"]
    text += table(
        columns,
        [["as fast as read" if r.rate is None else f"{r.rate:,.0f}", f"{r.taken:,.0f}", f"{r.cpu_share:.0%}",
          f"{r.gap_ms:.1f}", f"{r.gap_ms_p50:.1f}", f"{r.gap_ms_p99:.1f}", r.warning or "-"] for r in results],
    )  # fmt: skip
    write(text, args.out)
    line = Line("bench serve: tokens/s from one core without being the bottleneck", f"{GOAL:,.0f}",
                f"{at_goal.taken:,.0f} with {at_goal.cpu_share:.0%} of the core", "", "", passed)  # fmt: skip
    write_lines([line], args.lines)
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
