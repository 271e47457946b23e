"""What is left of decoding while another process keeps one core busy?

    python benchmarks/neighbour.py [--form int8/int8] [--batch 1 8 32] [--rounds 5] [--out FILE.md]

Quiet and disturbed runs take turns in one process; the ratio is taken within a round, the median of the rounds is the
result. The neighbour is an endless loop that is bound to one of the cores this process may use.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from report import Line, add_line_argument, heading, table, write, write_lines
from throughputs import engine_config

from orcaserve.evaluation.measured_engine import MeasuredEngine

GOAL = 0.45
BUSY = """
import os, signal, sys
from orcaserve.process import die_with_parent
os.sched_setaffinity(0, {int(sys.argv[1])})
if die_with_parent(int(sys.argv[2]), signal.SIGKILL):  # also if this script is killed
    while True:
        pass
"""


@contextmanager
def busy_core(core: int) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", BUSY, str(core), str(os.getpid())])
    try:
        while cpu_ticks(process.pid) < 10:  # it has started and is at its loop
            if process.poll() is not None:
                raise SystemExit("the busy neighbour ended")
            time.sleep(0.01)
        yield
    finally:
        process.kill()
        process.wait()


def cpu_ticks(pid: int) -> int:
    """User time the process has had so far."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11])


def decode(engine: MeasuredEngine, batch: int, prompt: int, gen: int) -> float:
    """Tokens/s after the first token of all."""
    return batch * gen / engine.run(engine.random_prompts(batch, prompt), 1 + gen).decode_seconds


def settle(engine: MeasuredEngine, batch: int, prompt: int, gen: int) -> None:
    """Work until the engine has all its threads at work again, which takes a second after a neighbour has left."""
    end = time.monotonic() + 2
    while time.monotonic() < end:
        decode(engine, batch, prompt, gen)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--form", default="int8/int8", help="weights/K/V")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--gen", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out")
    add_line_argument(parser)
    args = parser.parse_args()
    weights, kv = args.form.split("/")
    config = engine_config(args.model, weights, kv, max(args.batch), args.prompt + args.gen + 1)
    core = min(os.sched_getaffinity(0))
    rows: list[list[object]] = []
    lines = []
    with MeasuredEngine(config) as engine:
        for batch in args.batch:
            pairs = []
            engine.run(engine.random_prompts(batch, args.prompt), 2)
            for _ in range(args.rounds):
                settle(engine, batch, args.prompt, args.gen)
                quiet = decode(engine, batch, args.prompt, args.gen)
                with busy_core(core):
                    pairs.append((quiet, decode(engine, batch, args.prompt, args.gen)))
                print(f"batch {batch}: quiet {pairs[-1][0]:.0f}, disturbed {pairs[-1][1]:.0f} tokens/s", flush=True)
            share = median(disturbed / quiet for quiet, disturbed in pairs)
            quiet, disturbed = (median(column) for column in zip(*pairs, strict=True))
            rows.append([batch, f"{quiet:,.0f}", f"{disturbed:,.0f}", f"{share:.0%}", f"{GOAL:.0%}"])
            what = f"decode with a neighbour busy on one core, batch {batch}"
            lines.append(
                Line(what, f"{GOAL:.0%} of quiet", f"{disturbed:,.0f}", f"{quiet:,.0f}", f"{share:.0%}", share >= GOAL)
            )
    columns = ["batch", "quiet, tokens/s", "beside a busy process", "share", "goal"]
    write(heading("A busy neighbour", __doc__) + f"{args.form}\n\n" + table(columns, rows), args.out)
    write_lines(lines, args.lines)
    return 0 if all(line.passed for line in lines) else 1


if __name__ == "__main__":
    raise SystemExit(main())
