"""How long does a cut model take to load, and how much of it is in each worker?

    python benchmarks/part_loading.py [--quantization int8] [--cuts 1x1 2x1 1x2 2x2 1x3] [--runs 3] [--out FILE.md]

Of the original files, and of the same model converted: seconds from starting the engine until it takes requests (median
of the runs; interpreters, imports and choosing exact inputs included), and of each worker then, in MiB, what it
holds in memory of its own, what it has mapped and touched of files (shared with whoever maps them too; libraries are
some 100 MiB of it), and what of the file of weights alone. 1x1 is an engine in one process, without workers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from report import heading, table, write

from orcaserve.checkpoint.converted import WEIGHTS
from orcaserve.checkpoint.locate import locate_model
from orcaserve.config import EngineConfig, KVConfig, ModelConfig, ParallelConfig
from orcaserve.engine.host import EngineHost
from orcaserve.native.convert import convert
from orcaserve.worker.resources import available_cores


def load(model: Path, quantization: str, p: int, t: int) -> tuple[float, list[tuple[int, int, int]]]:
    """Seconds, and of each worker KiB: its own, of files, of the file of weights."""
    config = EngineConfig(
        ModelConfig(model, "cut", quantization=quantization),  # type: ignore[arg-type]
        KVConfig(n_slots=4096),
        parallel=ParallelConfig(p, t),
    )
    news: SimpleQueue[Any] = SimpleQueue()
    started = time.monotonic()
    host = EngineHost.load(config, news.put, news.put)
    took = time.monotonic() - started
    try:
        pids = children() if p * t > 1 else [os.getpid()]
        return took, [memory_of(pid) for pid in pids]
    finally:
        host.close()


def children() -> list[int]:
    """Of this process, in the order of their starts."""
    return sorted(int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def memory_of(pid: int) -> tuple[int, int, int]:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    own, files = (int(status[name].split()[0]) for name in ("RssAnon", "RssFile"))
    weights, inside = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if line.split()[0].endswith(":"):
            weights += int(line.split()[1]) if inside and line.startswith("Rss:") else 0
        else:
            inside = line.endswith((WEIGHTS, ".gguf"))
    return own, files, weights


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--quantization", default="int8")
    parser.add_argument("--cuts", nargs="+", default=["1x1", "2x1", "1x2", "2x2", "1x3"], help="stages x shards")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out")
    args = parser.parse_args()
    path = locate_model(args.model)
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        converted = Path(folder) / "model"
        convert(path, converted, "auto", args.quantization, available_cores())
        size = (converted / WEIGHTS).stat().st_size
        for cut in args.cuts:
            p, t = map(int, cut.split("x"))
            for kind, model in (("original", path), ("converted", converted)):
                runs = [load(model, args.quantization, p, t) for _ in range(args.runs)]
                seconds = [took for took, _ in runs]
                workers = list(zip(*runs[-1][1], strict=True))
                shown = [" / ".join(f"{kib / 1024:.0f}" for kib in column) for column in workers]
                rows.append([cut, kind, f"{statistics.median(seconds):.2f}", f"{min(seconds):.2f}", *shown])
                print(*rows[-1], sep="  ", flush=True)
    write(
        heading("Loading parts", __doc__)
        + f"{args.quantization}; the converted file has {size / 2**20:.0f} MiB.\n\n"
        + table(["stages x shards", "files", "s", "best", "own", "of files", "of weights' file"], rows),
        args.out,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
