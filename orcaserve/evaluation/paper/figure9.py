"""Figure 9: the engines alone. One batch of equal requests is injected again and again until all of it is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from orcaserve.evaluation.paper.figure import Figure, Table
from orcaserve.evaluation.paper.published import BATCHES, FIGURE_9B, OUT_OF_MEMORY
from orcaserve.evaluation.pictures.chart import COLOURS, Axis, Chart, Series, draw_chart
from orcaserve.evaluation.pictures.drawing import beside
from orcaserve.scheduler import Scheduler
from orcaserve.simulation.driver import simulate
from orcaserve.simulation.models import PAPER_MODELS
from orcaserve.simulation.paper import FASTER_TRANSFORMER_ENGINE, ORCA_ENGINE, paper_cost, paper_slots
from orcaserve.simulation.pipeline import Pipeline
from orcaserve.workload import Arrival

MODELS = ("13b", "101b", "175b")
INPUTS = (32, 128)
N_OUTPUT = 32
_KINDS = {"ft": "square", "orca": "circle"}


@dataclass(frozen=True, slots=True)
class Point:
    """ms: of the whole batch, first token to last; None: it does not fit the memory. paper_ms: as the plot shows it."""

    model: str
    system: str
    n_input: int
    batch: int
    ms: float | None
    paper_ms: float | None = None


def milliseconds(model: str, system: str, n_input: int, batch: int) -> float | None:
    """Time of one batch; None if its K/V does not fit: FasterTransformer reserves the longest request for each."""
    sizes, _ = PAPER_MODELS[model]
    cost = paper_cost(model, ORCA_ENGINE if system == "orca" else FASTER_TRANSFORMER_ENGINE)
    reserved = n_input + N_OUTPUT if system == "orca" else sizes.context_length
    n_slots = paper_slots(model)
    if batch * reserved > n_slots:
        return None
    arrivals = [Arrival(0.0, n_input, N_OUTPUT)] * batch
    return simulate(arrivals, Scheduler(n_slots, batch, cost.n_workers), Pipeline(cost)).seconds * 1e3


def points() -> Iterator[Point]:
    for model in MODELS:
        for system in ("ft", "orca"):
            for n_input in INPUTS:
                published = FIGURE_9B[system, n_input] if model == "101b" else [None] * len(BATCHES)
                for batch, paper_ms in zip(BATCHES, published, strict=True):
                    yield Point(model, system, n_input, batch, milliseconds(model, system, n_input, batch), paper_ms)


def figure_9() -> Figure:
    every = list(points())
    charts = [_chart(model, [p for p in every if p.model == model], last=model == MODELS[-1]) for model in MODELS]
    return Figure(
        "9",
        "The engines alone",
        "One batch of equal requests runs until each has 32 tokens; the number in brackets is that of input tokens. "
        "Alone, the two engines are alike: what Orca loses by running attention request by request is small, and it "
        "runs batches for which FasterTransformer, which sets aside 2,048 tokens for everyone, has no memory.",
        beside([draw_chart(chart) for chart in charts]),
        [_table_101b(every), _table_memory(every), _table_others(every)],
        [asdict(point) for point in every],
    )


def _chart(model: str, mine: Sequence[Point], last: bool) -> Chart:
    series = []
    for i, (system, n_input) in enumerate((s, n) for s in ("ft", "orca") for n in INPUTS):
        curve = [p for p in mine if (p.system, p.n_input) == (system, n_input)]
        kind = _KINDS[system]
        fits = [(p.batch, p.ms) for p in curve if p.ms is not None]
        series.append(Series(f"{system}({n_input})", fits, COLOURS[i], kind))
        published = [(p.batch, p.paper_ms) for p in curve if p.paper_ms is not None]
        if published:
            series.append(Series("", published, COLOURS[i], "", dashed=True))
        if len(fits) < len(curve):
            series.append(Series("", [(curve[len(fits)].batch, fits[-1][1])], COLOURS[i], "cross", line=False))
    name = PAPER_MODELS[model][0].name
    if last:
        series.append(Series("the paper's", [], "#555555", "", dashed=True))
        series.append(Series("out of memory", [], "#555555", "cross", line=False))
    return Chart(
        f"{name}" + (" (dashed: the paper's)" if model == "101b" else ""),
        Axis("batch", log=True, ticks=BATCHES),
        Axis("ms for 32 tokens", low=0),
        series,
        width=470 if last else 350,
        legend=last,
    )


def _table_101b(every: Sequence[Point]) -> Table:
    rows = []
    for (system, n_input), published in FIGURE_9B.items():
        curve = [p for p in every if (p.model, p.system, p.n_input) == ("101b", system, n_input)]
        rows.append([f"{system}({n_input})", *[_cell(p.ms) for p in curve]])
        rows.append(["   the paper's", *[_cell(ms) for ms in published]])
        pairs = [(p.ms, p.paper_ms) for p in curve]
        rows.append(["   difference", *[f"{a / b - 1:+.1%}" if a and b else "" for a, b in pairs]])
    return Table("101B: ms for 32 tokens, by batch (the paper's are read off its plot)", _heading(), rows)


def _table_memory(every: Sequence[Point]) -> Table:
    rows = []
    for model in MODELS:
        failed = [p.batch for p in every if p.model == model and p.system == "ft" and p.ms is None]
        published = OUT_OF_MEMORY.get(model)
        rows.append([PAPER_MODELS[model][0].name, str(min(failed, default="none")), str(published or "not said")])
    return Table("The first batch that FasterTransformer has no memory for", ["model", "here", "the paper's"], rows)


def _table_others(every: Sequence[Point]) -> Table:
    rows = [
        [f"{PAPER_MODELS[model][0].name} {system}({n})", *[_cell(p.ms) for p in every if
         (p.model, p.system, p.n_input) == (model, system, n)]]
        for model in ("13b", "175b") for system in ("ft", "orca") for n in INPUTS
    ]  # fmt: skip
    return Table("13B and 175B: ms for 32 tokens, by batch", _heading(), rows)


def _heading() -> list[str]:
    return ["", *map(str, BATCHES)]


def _cell(ms: float | None) -> str:
    return "memory" if ms is None else f"{ms:,.0f}"
