"""How long until `orcaserve serve` is ready, how long does `--help` take, and how much memory is overhead?

    python benchmarks/startup.py [--runs 5] [--out FILE.md]

Ready: from the command to the first 200 of /ready, the model in the cache. Memory: peak resident bytes of endpoint and
engine together (their own peaks added, shared pages counted twice), after 32 clients with prompts of 128 tokens have
had 64 tokens each, less the weights in float32 and a K/V region that they fill.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from http_streams import streams
from report import heading, table, write
from server import serving

WEIGHTS = 134_515_008 * 4  # parameters of the default model, float32
SLOT = 2 * 30 * 3 * 64 * 4  # bytes: K and V, layers, K/V heads, head size, float32
N_SLOTS = 32 * (128 + 64)


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out")
    args = parser.parse_args()
    rng = random.Random(0)
    prompts = [[rng.randint(100, 40000) for _ in range(128)] for _ in range(32)]
    ready, helps, endpoint, engine = [], [], [], []
    for _ in range(args.runs):
        start = time.perf_counter()
        subprocess.run(
            [str(Path(sys.executable).parent / "orcaserve"), "--help"], stdout=subprocess.DEVNULL, check=True
        )
        helps.append(time.perf_counter() - start)
        with serving(["--n-slots", str(N_SLOTS), "--max-num-seqs", "32"]) as server:
            ready.append(server.ready_seconds)
            asyncio.run(streams(server.base, prompts, 64))
            endpoint.append(peak_bytes(server.process.pid))
            engine.append(sum(peak_bytes(pid) for pid in children(server.process.pid)))
        print(f"ready {ready[-1]:.2f} s, help {helps[-1]:.2f} s, engine {engine[-1] / 1e6:.0f} MB", flush=True)
    known = WEIGHTS + N_SLOTS * SLOT
    both = [a + b for a, b in zip(endpoint, engine, strict=True)]
    rows = [
        ["serve to ready", f"{median(ready):.2f} s", f"{min(ready):.2f} - {max(ready):.2f} s", "5 s"],
        ["--help", f"{median(helps):.2f} s", f"{min(helps):.2f} - {max(helps):.2f} s", "0.3 s"],
        ["weights + K/V (computed)", f"{known / 1e6:.0f} MB", "", ""],
        ["peak of the engine", f"{median(engine) / 1e6:.0f} MB", "", ""],
        ["peak of the endpoint", f"{median(endpoint) / 1e6:.0f} MB", "", ""],
        ["engine, beside weights + K/V", f"{(median(engine) - known) / 1e6:.0f} MB", "", "400 MB"],
        ["engine + endpoint, beside weights + K/V", f"{(median(both) - known) / 1e6:.0f} MB", "", "400 MB"],
    ]
    write(heading("Start-up and memory", __doc__) + table(["", "median", "range", "goal"], rows), args.out)


if __name__ == "__main__":
    main()
