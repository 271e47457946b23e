"""Does a model eight times as large keep its share of the machine's limit, and is an iteration's time linear?

    python benchmarks/scaling.py [--forms int8 int4] [--out FILE.md]

A random model of 1.1 billion parameters (TinyLlama's sizes) is written into a temporary folder and measured beside
the default model: peak memory, decoding at batch 1, 8 and 32, share of the bandwidth that reading its weights takes
(batch 1) and of the arithmetic (batch 32). Then the time of an iteration of the default model: against the tokens of
the batch (more and more prompts of 64 tokens), and against the context (8 requests that grow). K/V is int8.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import machine_limits
from fit import Fit, fit_line
from machine_limits import Limits
from plots import plot_scaling
from random_model import BILLION, Sizes, write_model
from report import Line, add_line_argument, heading, table, write, write_lines
from throughputs import Work, engine_config, ours

from orcaserve.checkpoint.locate import locate_model
from orcaserve.evaluation.measured_engine import MeasuredEngine
from orcaserve.evaluation.sizes import (
    matrix_bytes_per_token,
    model_spec,
    operations_per_token,
    slot_bytes,
    weight_bytes,
)

KV = "int8"
KEPT = 0.9  # share of the limit that a large model should keep of the small one's
LINEAR = 0.99  # least R² of a straight line
TINY = Sizes(hidden=256, layers=2, heads=4, kv_heads=2, intermediate=512, vocab=2048)


@dataclass(frozen=True, slots=True)
class Series:
    """Seconds of an iteration at growing x."""

    name: str
    along: str
    x: Sequence[float]
    seconds: Sequence[float]
    line: Fit


@dataclass(frozen=True, slots=True)
class Measured:
    """One model in one form. peak, needed: bytes, of the process and of weights and K/V; shares: of the limit."""

    name: str
    form: str
    decode: dict[int, float]
    peak: int
    needed: int
    bandwidth: float
    arithmetic: float | None


def measure_model(name: str, path: Path, form: str, work: Work, limits: Limits) -> Measured:
    rows, peak = _run(ours(form, KV, work, "--model", str(path)))
    spec = model_spec(path)
    decode = {row["batch"]: row["decode_tok_s"] for row in rows}
    if None in decode.values():
        raise SystemExit("decoding took too little time to be measured")
    n_bytes, operations = matrix_bytes_per_token(path, form), operations_per_token(spec)
    arithmetic = limits.arithmetic(form)
    slots = max(work.batch) * -(-(work.prompt + work.gen + 1) // 16) * 16
    return Measured(
        name,
        form,
        decode,
        peak,
        weight_bytes(path, form) + slots * slot_bytes(spec, KV),
        n_bytes * decode[1] / 1e9 / limits.read(n_bytes),
        operations * decode[max(decode)] / 1e9 / arithmetic if arithmetic else None,
    )


def _run(command: Sequence[str]) -> tuple[list[dict[str, Any]], int]:
    """The rows a command prints, and the most memory its process had resident."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        if os.waitstatus_to_exitcode(status):
            raise SystemExit(f"{' '.join(command[1:5])} ended with {os.waitstatus_to_exitcode(status)}")
        output.seek(0)
        text = output.read()
    print(text, end="", flush=True)
    return [json.loads(line) for line in text.splitlines()], usage.ru_maxrss * 1024


def along_tokens(engine: MeasuredEngine, most: int, repeat: int) -> Series:
    """Iterations of n prompts of 64 tokens, n growing."""
    length = 64
    counts = sorted({max(1, round(most * share / 8 / length)) for share in range(1, 9)})
    engine.run(engine.random_prompts(counts[-1], length), 1)
    seconds = []
    for count in counts:
        runs = [engine.run(engine.random_prompts(count, length), 1).iterations for _ in range(repeat)]
        if any(len(run) != 1 or run[0].tokens != count * length for run in runs):
            raise SystemExit("the prompts did not run in one iteration")
        seconds.append(min(run[0].seconds for run in runs))
    x = [count * length for count in counts]
    return Series("prompts of 64 tokens", "tokens of the batch", x, seconds, fit_line(x, seconds))


def along_context(engine: MeasuredEngine, batch: int, most: int, steps: int) -> Series:
    """Increments of `batch` requests; around each of 8 contexts the median of `steps` iterations."""
    x = [most * share // 8 for share in range(1, 9)]
    seconds = []
    for context in x:
        increments = engine.run(engine.random_prompts(batch, context - steps // 2), 1 + steps).iterations[1:]
        seconds.append(median(iteration.seconds for iteration in increments))
    return Series(f"increments of {batch} requests", "context", x, seconds, fit_line(x, seconds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forms", nargs="+", default=["int8", "int4"])
    parser.add_argument("--quick", action="store_true", help="tiny models and work, to see whether everything runs")
    parser.add_argument("--out")
    add_line_argument(parser)
    args = parser.parse_args()
    small = locate_model(None)
    work = Work((1, 2), 16, 4) if args.quick else Work((1, 8, 32), 128, 32)
    most_tokens, most_context = (256, 128) if args.quick else (4096, 4096)

    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / "random-model"
        large.mkdir()
        sizes = TINY if args.quick else BILLION
        write_model(large, sizes)
        models = {"default": small, f"random, {sizes.parameters / 1e9:.2f} G": large}
        sets = sorted({matrix_bytes_per_token(path, form) for path in models.values() for form in args.forms})
        limits = machine_limits.measure(sets)
        measured = [
            measure_model(name, path, form, work, limits) for form in args.forms for name, path in models.items()
        ]
    config = engine_config(None, "int8", KV, 64, max(most_tokens // 64, most_context // 8) + 80)
    with MeasuredEngine(config) as engine:
        series = [along_tokens(engine, most_tokens, 3), along_context(engine, 8, most_context, 8 if args.quick else 32)]

    rows = [
        [m.name, m.form, *(f"{value:,.1f}" for value in m.decode.values()), f"{m.peak / 1e6:,.0f} MB",
         f"{m.needed / 1e6:,.0f} MB", f"{m.bandwidth:.0%}", "" if m.arithmetic is None else f"{m.arithmetic:.0%}"]
        for m in measured
    ]  # fmt: skip
    columns = ["model", "weights", *(f"decode, batch {b}" for b in work.batch), "peak memory", "weights + K/V",
               "of the bandwidth, batch 1", f"of the arithmetic, batch {work.batch[-1]}"]  # fmt: skip
    lines = [*share_lines(measured, work.batch[-1]), *map(linear_line, series)]
    text = heading("Scaling", __doc__) + "Tokens/s; K/V int8.\n\n" + table(columns, rows)
    for one in series:
        text += f"\nTime of an iteration along the {one.along} ({one.name}):\n\n"
        cells = [
            [f"{x:,.0f}", f"{y * 1e3:.2f}", f"{one.line.at(x) * 1e3:.2f}"]
            for x, y in zip(one.x, one.seconds, strict=True)
        ]
        text += table([one.along, "ms", "ms on the straight line"], cells) + f"\nR² = {one.line.r_squared:.4f}\n"
    if args.out and plot_scaling(series, Path(args.out)):
        text += f"\n![time of an iteration]({Path(args.out).stem}.svg)\n"
    write(text, args.out)
    write_lines(lines, args.lines)
    return 1 if any(line.passed is False for line in lines) else 0


def share_lines(measured: Sequence[Measured], batch: int) -> list[Line]:
    """Per form and limit: the large model's share against the small one's."""
    lines = []
    for small, large in zip(measured[::2], measured[1::2], strict=True):
        for what, one, other in (
            ("bandwidth, batch 1", small.bandwidth, large.bandwidth),
            (f"arithmetic, batch {batch}", small.arithmetic, large.arithmetic),
        ):
            if one is not None and other is not None:
                name = f"1.1 G parameters, {large.form}: share of the {what}"
                goal, default = f"{KEPT:.0%} of the default model's", f"{one:.0%} (default model)"
                lines.append(Line(name, goal, f"{other:.0%}", default, f"{other / one:.0%}", other >= KEPT * one))
    return lines


def linear_line(series: Series) -> Line:
    what = f"time of an iteration is linear in the {series.along}"
    r_squared = series.line.r_squared
    return Line(what, f"R² {LINEAR}", f"{r_squared:.4f}", "", "", r_squared >= LINEAR)


if __name__ == "__main__":
    raise SystemExit(main())
