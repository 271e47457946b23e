"""How long from the command to the first token, and how much memory beside weights and K/V?

    python benchmarks/startup.py [--runs 5] [--forms int8/int8 float32/float32] [--out FILE.md]

`orcaserve bench startup` for each form, the model in the cache. Memory: peak resident bytes of endpoint and engine
together (their own peaks added, shared pages counted twice), after 32 prompts of 128 tokens have had 64 tokens each,
less the weights in their form and a K/V region that this work fills.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from report import Line, add_line_argument, heading, table, write, write_lines
from throughputs import form_flags

GOALS = {"generate_s": 2.0, "serve_s": 2.0, "help_s": 0.3, "beside_weights_and_kv_mb": 300.0}
NAMES = {
    "help_s": "`--help`",
    "generate_s": "`generate` to the first text",
    "ready_s": "`serve` to ready",
    "serve_s": "`serve` to the first token over HTTP",
    "weights_mb": "weights (computed)",
    "kv_mb": "K/V (computed)",
    "engine_peak_mb": "peak of the engine",
    "endpoint_peak_mb": "peak of the endpoint",
    "beside_weights_and_kv_mb": "engine + endpoint, beside weights and K/V",
}


def measure(form: str, model: str | None, runs: int) -> dict[str, float]:
    weights, kv = form.split("/")
    command = [sys.executable, "-m", "orcaserve", "bench", "startup", "--json", "--repeat", str(runs)]
    command += [*form_flags(weights, kv), *(["--model", model] if model else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, float] = json.loads(done.stdout)
    print(json.dumps(row), flush=True)
    return row


def shown(name: str, row: dict[str, float]) -> str:
    if name.endswith("_mb"):
        return f"{row[name]:.0f} MB"
    return f"{row[name]:.2f} s (most {row[name + '_most']:.2f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--forms", nargs="+", default=["int8/int8", "float32/float32"], help="weights/K/V")
    parser.add_argument("--out")
    add_line_argument(parser)
    args = parser.parse_args()
    rows = {form: measure(form, args.model, args.runs) for form in args.forms}
    goal = {name: f"{GOALS[name]:g} {'MB' if name.endswith('_mb') else 's'}" for name in GOALS}
    cells = [[text, *(shown(name, row) for row in rows.values()), goal.get(name, "")] for name, text in NAMES.items()]
    write(heading("Start-up and memory", __doc__) + table(["", *rows, "goal"], cells), args.out)
    form, row = next(iter(rows.items()))  # the first form is held to the goals, others are for comparison
    lines = [
        Line(f"{NAMES[name]}, {form}", goal[name], shown(name, row), "", "", row[name] <= GOALS[name]) for name in GOALS
    ]
    write_lines(lines, args.lines)
    return 0 if all(line.passed for line in lines) else 1


if __name__ == "__main__":
    raise SystemExit(main())
