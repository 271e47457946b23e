"""Figure 3: three requests, scheduled by whole batches and by iterations; both by the scheduler that serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from orcaserve.core import Batch, Phase
from orcaserve.evaluation.paper.figure import Figure, Table
from orcaserve.evaluation.paper.unit_cost import UnitCost
from orcaserve.evaluation.pictures.chart import COLOURS, GRID
from orcaserve.evaluation.pictures.drawing import FAINT, INK, Box, Dot, Drawing, Line, Text, below
from orcaserve.scheduler import IterationLevelFCFS, Scheduler, SchedulingPolicy
from orcaserve.scheduler.policies import RequestLevel
from orcaserve.simulation.driver import simulate
from orcaserve.simulation.outcome import Life
from orcaserve.simulation.pipeline import Pipeline
from orcaserve.workload import Arrival

# Two requests are there at first, of which the second is shorter; the third one comes while they run.
REQUESTS = (Arrival(0.0, 3, 6), Arrival(0.0, 2, 2), Arrival(1.5, 4, 3))
MAX_BS, N_SLOTS = 2, 64
LEFT, CELL, ROW, TOP = 60, 74, 44, 34


@dataclass(frozen=True, slots=True)
class Cell:
    """One request in one iteration. wasted: it had all its tokens already."""

    request: int
    iteration: int
    tokens: str
    initiation: bool
    wasted: bool


@dataclass(frozen=True, slots=True)
class Run:
    title: str
    cells: Sequence[Cell]
    lives: Sequence[Life]


def figure_3() -> Figure:
    runs = [
        _run("whole batches (request-level)", RequestLevel(N_SLOTS // MAX_BS, shortest_first=False)),
        _run("iteration by iteration (Orca)", IterationLevelFCFS()),
    ]
    rows = [
        [f"x{i + 1}", *[f"{run.lives[i].latency:g}" for run in runs]] for i in range(len(REQUESTS))
    ]  # fmt: skip
    table = Table("Latency, in iterations", ["request", *[run.title for run in runs]], rows)
    return Figure(
        "3",
        "Who waits for whom",
        "At most two requests share a batch; x2 needs fewer tokens than x1, and x3 arrives while both run. By whole "
        "batches, x2's answer is held back while it is computed on in vain, and x3 waits for x1; iteration by "
        "iteration x2 is answered when it is done, and x3 takes its place at once.",
        below([_draw(run) for run in runs], 6),
        [table],
        [{"run": run.title, **asdict(cell)} for run in runs for cell in run.cells],
    )


def _run(title: str, policy: SchedulingPolicy) -> Run:
    pipeline = Pipeline(UnitCost(), record=True)
    outcome = simulate(REQUESTS, Scheduler(N_SLOTS, MAX_BS, policy=policy), pipeline)
    assert pipeline.blocks is not None
    cells: list[Cell] = []
    n_done = [0] * len(REQUESTS)
    for block in pipeline.blocks:
        cells += _cells(block.batch, round(block.start), n_done)
    return Run(title, cells, outcome.lives)


def _cells(batch: Batch, at: int, n_done: list[int]) -> list[Cell]:
    cells = []
    for entry in batch.entries:
        who = entry.request_id
        wasted = n_done[who] >= REQUESTS[who].n_output
        initiation = entry.phase is Phase.INITIATION
        n_done[who] += 1
        name = f"x{who + 1}"
        text = f"{name}: {len(entry.tokens)} in" if initiation else "in vain" if wasted else f"token {n_done[who]}"
        cells.append(Cell(who, at, text, initiation, wasted))
    return cells


def _draw(run: Run) -> Drawing:
    """A row for every request, a column for every iteration."""
    columns = round(max(life.token_times[-1] for life in run.lives))
    sheet = Drawing(LEFT + CELL * 10 + 40, TOP + ROW * len(REQUESTS) + 34)
    sheet.add(Text(LEFT, 20, run.title, 13, thick=True))
    bottom = TOP + ROW * len(REQUESTS)
    for column in range(columns + 1):
        x = LEFT + column * CELL
        sheet.add(Line([(x, TOP), (x, bottom)], GRID))
        if column < columns:
            sheet.add(Text(x + CELL / 2, bottom + 16, f"iteration {column + 1}", 10, "middle", FAINT))
    for row, life in enumerate(run.lives):
        y = TOP + row * ROW
        colour = COLOURS[row]
        come, answered = LEFT + life.arrival.time * CELL, LEFT + life.token_times[-1] * CELL
        sheet.add(Text(LEFT - 12, y + 27, f"x{row + 1}", 14, "end", colour, thick=True))
        sheet.add(Line([(come, y + ROW / 2), (answered, y + ROW / 2)], colour, 1.5, dashed=True))
        sheet.add(Dot(come, y + ROW / 2, colour, "triangle", 5, "arrives"))
        sheet.add(Text(answered + 8, y + 27, "answered", 11, fill=colour))
    for cell in run.cells:
        x, y = LEFT + cell.iteration * CELL + 4, TOP + cell.request * ROW + 7
        fill = "#d0d0d0" if cell.wasted else COLOURS[cell.request]
        sheet.add(Box(x, y, CELL - 8, ROW - 14, fill, radius=4, hatched=cell.wasted))
        ink = INK if cell.wasted else "white"
        sheet.add(Text(x + CELL / 2 - 4, y + 20, cell.tokens, 11, "middle", ink, thick=cell.initiation))
    return sheet
