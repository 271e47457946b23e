"""Is float32 decode ahead of vLLM's CPU build in bfloat16 and llama.cpp in Q8_0? Both sides in one run.

    python benchmarks/peers.py --peers PEERS.py [--home DIR] --subjects vllm:bfloat16 llamacpp:Q8_0 [--out FILE.md]

PEERS.py measures another engine: `PEERS.py throughput SUBJECT --batch ... --prompt ... --gen ...` prints the rows of
benchmarks/throughput.py. Ours runs before, between and after the others, and the medians of its runs are compared, so
that a machine that changes speed shows as a spread instead of as a result.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from report import heading, table, write

HERE = Path(__file__).parent


def rows_of(command: list[str]) -> list[dict[str, Any]]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not rows:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    for row in rows:
        print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", required=True)
    parser.add_argument("--home")
    parser.add_argument("--subjects", nargs="+", default=["vllm:bfloat16", "llamacpp:Q8_0"])
    parser.add_argument("--batch", nargs="+", default=["1", "8", "32"])
    parser.add_argument("--out")
    args = parser.parse_args()
    work = ["--batch", *args.batch, "--prompt", "128", "--gen", "32"]
    ours = [sys.executable, str(HERE / "throughput.py"), *work]
    peer = [sys.executable, args.peers, "throughput"]
    home = ["--home", args.home] if args.home else []
    results: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)

    def add(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            results[f"{row['engine']} {row['form']}", row["batch"]].append(row)

    add(rows_of(ours))
    for subject in args.subjects:
        add(rows_of([*peer, subject, *work, *home]))
        add(rows_of(ours))
    lines = []
    best = {
        key: {f: median(r[f] for r in rows) for f in ("prefill_tok_s", "decode_tok_s")} for key, rows in results.items()
    }
    for (engine, batch), figures in sorted(best.items(), key=lambda item: (item[0][1], item[0][0])):
        ours_here = best["orcaserve float32", batch]
        ratios = [f"{ours_here[f] / figures[f]:.2f}" for f in figures]
        lines.append([engine, batch, *(f"{v:.0f}" for v in figures.values()), *ratios, len(results[engine, batch])])
    text = heading("Ours and the peers", __doc__) + table(
        ["engine, weights", "batch", "prompt tok/s", "decode tok/s", "ours / it, prompt", "ours / it, decode", "runs"],
        lines,
    )
    write(text, args.out)


if __name__ == "__main__":
    main()
