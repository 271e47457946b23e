"""Profiling: the iterations of an engine at many batch sizes, prompt lengths and contexts, for a cost to be fitted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from orcaserve.evaluation.measured_engine import MeasuredEngine
from orcaserve.evaluation.play import Played, keep_running
from orcaserve.simulation.profile import Sample

STEP_TOKENS = 1024  # about as many prompt tokens join with an iteration while a cell starts
WARM_UP_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Cell:
    """What is kept running: `concurrency` requests with inputs and outputs drawn from these ranges, for `seconds`."""

    concurrency: int
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    seconds: float


def plan(max_bs: int, longest: int, n_slots: int, seconds: float) -> list[Cell]:
    """Cells of `seconds` each, as far as requests of `longest` tokens and n_slots allow.

    Short, middle and long prompts with few to max_bs requests; and prompts alone, whose outputs are one token.
    """
    sizes = [size for size in (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128) if size < max_bs] + [max_bs]
    cells = [Cell(1, (low, high), (1, 1), seconds) for low, high in ((8, 128), (128, 512), (512, 2048))]
    cells += [Cell(size, inputs, (8, 64), seconds) for inputs in ((2, 64), (64, 512), (512, 1536)) for size in sizes]
    return [fitted for cell in cells if (fitted := _fitted(cell, longest, n_slots)) is not None]


def _fitted(cell: Cell, longest: int, n_slots: int) -> Cell | None:
    """With lengths cut to what fits; None if little is left of it."""
    room = min(longest, n_slots // cell.concurrency)
    outputs = min(cell.outputs[0], room // 4), min(cell.outputs[1], room // 4)
    low, high = cell.inputs
    most = min(high, room - outputs[1])
    if outputs[0] < 1 or most < max(low, high // 2):
        return None
    return Cell(cell.concurrency, (low, most), outputs, cell.seconds)


def measure(
    engine: MeasuredEngine, cells: Sequence[Cell], on_cell: Callable[[int, Cell], None] = lambda index, cell: None
) -> list[Sample]:
    """All iterations of all cells. on_cell: called before each."""
    rng = random.Random(0)
    keep_running(engine, _sizes(rng, Cell(2, (16, 64), (8, 8), 0)), 2, 2, WARM_UP_SECONDS)
    samples: list[Sample] = []
    for index, cell in enumerate(cells):
        on_cell(index, cell)
        step = max(STEP_TOKENS * 2 // sum(cell.inputs), 1)
        played = keep_running(engine, _sizes(rng, cell), cell.concurrency, step, cell.seconds)
        samples += samples_of(played)
    return samples


def samples_of(played: Played) -> list[Sample]:
    """Of all iterations that followed another at once."""
    return [Sample(done.shape, done.seconds) for done in played.iterations if done.seconds is not None]


def _sizes(rng: random.Random, cell: Cell) -> Iterator[tuple[int, int]]:
    while True:
        yield rng.randint(*cell.inputs), rng.randint(*cell.outputs)
