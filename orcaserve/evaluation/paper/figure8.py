"""Figure 8: six requests over a pipeline of three workers, as Orca and as FasterTransformer fill it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orcaserve.evaluation.paper.figure import Figure, Table
from orcaserve.evaluation.paper.unit_cost import UnitCost
from orcaserve.evaluation.pictures.chart import COLOURS
from orcaserve.evaluation.pictures.drawing import FAINT, Box, Drawing, Text, below
from orcaserve.scheduler import IterationLevelFCFS, Scheduler, SchedulingPolicy
from orcaserve.scheduler.policies import RequestLevel
from orcaserve.simulation.driver import simulate
from orcaserve.simulation.outcome import Outcome
from orcaserve.simulation.pipeline import Block, Pipeline
from orcaserve.workload import Arrival

NAMES = "ABCDEF"
N_WORKERS, MAX_BS, MICROBATCH = 3, 2, 1
N_OUTPUT, N_SLOTS, LONGEST = 3, 600, 32
LEFT, RIGHT, CELL, ROW, TOP = 84, 60, 36, 34, 34


@dataclass(frozen=True, slots=True)
class Run:
    title: str
    outcome: Outcome
    blocks: Sequence[Block]

    @property
    def idle(self) -> list[float]:
        """Share of the whole run in which each worker has nothing to do."""
        return [1 - busy / self.outcome.seconds for busy in self.outcome.busy]


def figure_8() -> Figure:
    runs = [
        _run("Orca: whole batches, as many in flight as there are workers", IterationLevelFCFS()),
        _run("FasterTransformer: one batch, cut into microbatches of one request", RequestLevel(LONGEST, MICROBATCH)),
    ]
    rows = [[run.title, f"{run.outcome.seconds:g}", f"{sum(run.idle) / N_WORKERS:.0%}"] for run in runs]
    return Figure(
        "8",
        "A pipeline without microbatches",
        "Six requests of three tokens each, two in a batch, three workers; A2 is the second iteration of A, and every "
        "block takes one unit of time. Orca keeps three whole batches in flight, so after the first blocks every "
        "worker always has one; FasterTransformer cuts its one batch, and has bubbles whenever an iteration ends.",
        below([_draw(run, max(r.outcome.seconds for r in runs)) for run in runs], 8),
        [Table("Until all six are answered", ["", "units of time", "workers idle"], rows)],
        [
            {"run": run.title, "worker": b.worker, "start": b.start, "requests": label}
            for run in runs for b, label in _labelled(run.blocks)
        ],
    )  # fmt: skip


def _run(title: str, policy: SchedulingPolicy) -> Run:
    pipeline = Pipeline(UnitCost(N_WORKERS), record=True)
    scheduler = Scheduler(N_SLOTS, MAX_BS, N_WORKERS, policy=policy)
    outcome = simulate([Arrival(0.0, 1, N_OUTPUT) for _ in NAMES], scheduler, pipeline)
    assert pipeline.blocks is not None
    return Run(title, outcome, pipeline.blocks)


def _labelled(blocks: Sequence[Block]) -> list[tuple[Block, str]]:
    """Each block with its requests, and which iteration of theirs it is: A1B1."""
    return [
        (block, "".join(f"{NAMES[entry.request_id]}{entry.position + 1}" for entry in block.batch.entries))
        for block in blocks
    ]


def _draw(run: Run, seconds: float) -> Drawing:
    """A row for every worker; batches of the same requests have one colour."""
    sheet = Drawing(LEFT + CELL * seconds + RIGHT, TOP + ROW * N_WORKERS + 12)
    sheet.add(Text(LEFT, 20, run.title, 13, thick=True))
    sheet.add(Text(LEFT + CELL * seconds + 10, 20, "idle", 11, fill=FAINT))
    for worker in range(N_WORKERS):
        y = TOP + worker * ROW
        sheet.add(Text(LEFT - 10, y + 21, f"worker {worker + 1}", 12, "end"))
        sheet.add(Box(LEFT, y, CELL * run.outcome.seconds, ROW - 5, "#eeeeee", radius=3))
        sheet.add(Text(LEFT + CELL * seconds + 10, y + 21, f"{run.idle[worker]:.0%}", 12))
    for block, label in _labelled(run.blocks):
        first = min(entry.request_id for entry in block.batch.entries)
        x, y = LEFT + block.start * CELL + 1, TOP + block.worker * ROW
        colour = COLOURS[first // 2]
        sheet.add(Box(x, y, (block.end - block.start) * CELL - 2, ROW - 5, colour, radius=3, hint=label))
        sheet.add(Text(x + CELL / 2 - 1, y + 20, label, 10, "middle", "white", thick=True))
    return sheet
