"""What do the two planes cost an iteration, and what would control messages on the data plane cost?

    python benchmarks/planes.py [--rounds N] [--out FILE.md]

Real worker processes, streams and transfers, with nothing computed: one batch of increments at a time goes from the
master through all stages and comes back. `control plane`: control messages alone. `data plane`: what the tensors of an
iteration of the default model (hidden states between stages, 60 sums over the shards of all layers) add. `through the
data plane`: the whole round trip where stages get control messages as tensors, in turn with the hidden states, as
systems with a single plane do; against `both planes`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any

from report import Line, add_line_argument, heading, table, write, write_lines

from orcaserve.config import EngineConfig, ModelConfig, ParallelConfig
from orcaserve.control_plane import worker_codec as codec
from orcaserve.core import Batch, BatchEntry, Phase
from orcaserve.data_plane.protocol import Place
from orcaserve.engine.machines import Machines
from orcaserve.engine.worker_group import WorkerGroup
from orcaserve.node import worker_process

GOAL = 1e-3  # s, master -> last worker -> master at P = 2
CUTS = ((2, 1), (4, 1), (1, 2), (2, 2))
BATCHES = (1, 32)
WAYS = ("control", "both", "through")


def round_trips(cut: tuple[int, int], way: str, batch: int, rounds: int) -> list[float]:
    """Seconds of each round trip."""
    os.environ["PLANES_WAY"] = way
    config = EngineConfig(ModelConfig(Path("none"), "none"), parallel=ParallelConfig(*cut))
    places = [Place(stage, shard, *cut) for stage in range(cut[0]) for shard in range(cut[1])]
    news: SimpleQueue[Any] = SimpleQueue()
    group = WorkerGroup(config, places, Machines(config), lambda place, message: news.put(message), news.put)
    try:
        group.load()
        group.start(16)
        seconds = []
        for number in range(1, rounds + 21):
            entries = tuple(BatchEntry(i, Phase.INCREMENT, [1000 + i], 100 + number) for i in range(batch))
            started = time.perf_counter()
            group.send(codec.encode_iteration(Batch(number, entries)))
            message = news.get(timeout=60)
            if isinstance(message, Exception):
                raise message
            codec.decode_result(message.result)
            seconds.append(time.perf_counter() - started)
        return seconds[20:]
    finally:
        group.kill()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300, help="round trips of each kind (default: %(default)s)")
    parser.add_argument("--out", metavar="FILE")
    add_line_argument(parser)
    args = parser.parse_args(argv)
    worker_process.WORKER_MODULE = "planes_worker"
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    rows, goal = [], None
    for cut in CUTS:
        for batch in BATCHES:
            control, both, through = (median(round_trips(cut, way, batch, args.rounds)) for way in WAYS)
            if cut == (2, 1) and batch == 1:
                goal = control
            passes = "" if cut[0] == 1 else f"{through * 1e3:.2f}"
            rows.append([f"{cut[0]} x {cut[1]}", batch, f"{control * 1e3:.2f}", f"{(both - control) * 1e3:.2f}",
                         f"{both * 1e3:.2f}", passes])  # fmt: skip
    columns = ["stages x shards", "requests", "control plane, ms", "data plane, ms", "both planes, ms",
               "through the data plane, ms"]  # fmt: skip
    assert goal is not None
    passed = goal <= GOAL
    text = heading("The two planes", __doc__) + table(columns, rows)
    text += f"\nMedians. Round trip at 2 x 1 without compute: {goal * 1e3:.2f} ms, goal {GOAL * 1e3:g} ms or less.\n"
    write(text, args.out)
    line = Line("master -> last worker -> master, P = 2", "1 ms or less", f"{goal * 1e3:.2f} ms", "", "", passed)
    write_lines([line], args.lines)
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
