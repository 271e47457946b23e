"""Figures 10 and 11: throughput against median normalised latency, end to end."""

from __future__ import annotations

from collections.abc import Sequence

from orcaserve.evaluation.paper import published
from orcaserve.evaluation.paper.figure import Figure, Table
from orcaserve.evaluation.paper.parallel import each
from orcaserve.evaluation.paper.sweep import Curve, Load, Task, curve
from orcaserve.evaluation.paper.systems import FT_SYSTEMS, ORCA_SYSTEMS, System
from orcaserve.evaluation.pictures.chart import COLOURS, Axis, Chart, Level, Series, draw_chart
from orcaserve.evaluation.pictures.drawing import Drawing, beside
from orcaserve.simulation.models import PAPER_MODELS

MODELS = ("101b", "175b", "341b")
ALIKE = ((32, 32), (256, 256))  # (input, output) tokens of Figure 11's requests
REQUESTS = 1500
LOWEST_MS, HIGHEST_MS = 20.0, 5000.0


def figure_10(n_processes: int, n_requests: float = 1.0) -> Figure:
    load = Load(round(REQUESTS * n_requests))
    tasks = [Task(model, system, load) for model in MODELS for system in (*FT_SYSTEMS, *ORCA_SYSTEMS)]
    curves = list(each(curve, tasks, n_processes))
    panels = [(PAPER_MODELS[model][0].name, [c for c in curves if c.task.model == model]) for model in MODELS]
    return Figure(
        "10",
        "End to end",
        "The paper's trace (32 to 512 input tokens, 1 to 128 generated) arrives at more and more requests a second; "
        "the number in brackets is the most requests in a batch, for FasterTransformer with its microbatch. Whole "
        "batches wait for their longest request and newcomers for the batch, so batching hardly helps "
        "FasterTransformer, while Orca carries more the more requests it may batch.",
        _draw(panels),
        [_table_101b(curves), _capacities(panels)],
        [row for c in curves for row in c.rows()],
    )


def figure_11(n_processes: int, n_requests: float = 1.0) -> Figure:
    tasks = []
    for n_input, n_output in ALIKE:
        # Requests of 256 tokens take eight times as many iterations as those of 32.
        load = Load(round(REQUESTS * n_requests * min(1, 64 / n_output)), (n_input, n_output))
        tasks += [Task("175b", system, load) for system in (System(1, 1), System(8, 8), System(16, 8), *ORCA_SYSTEMS)]
    curves = list(each(curve, tasks, n_processes))
    panels = [
        (f"175B, {sizes[0]} tokens in, {sizes[1]} out", [c for c in curves if c.task.load.sizes == sizes])
        for sizes in ALIKE
    ]
    return Figure(
        "11",
        "When all requests are alike",
        "175B, and every request has as many input and output tokens as every other. The requests of a batch now end "
        "together, so batching helps FasterTransformer as well, and what is left of Orca's lead comes from newcomers "
        "that need not wait and from a pipeline kept full without microbatches.",
        _draw(panels),
        [_capacities(panels)],
        [{"sizes": c.task.load.sizes, **row} for c in curves for row in c.rows()],
    )


def _draw(panels: Sequence[tuple[str, Sequence[Curve]]]) -> Drawing:
    charts = []
    for title, curves in panels:
        last = title == panels[-1][0]
        charts.append(
            Chart(
                title,
                Axis("requests/s", low=0),
                Axis("median normalised latency, ms/token", log=True, low=LOWEST_MS, high=HIGHEST_MS),
                [_series(c, i) for i, c in enumerate(curves)],
                levels=[Level(published.TARGET_MS, "190 ms")] if title == "175B" else (),
                width=470 if last else 350,
                legend=last,
            )
        )
    return beside([draw_chart(chart) for chart in charts])


def _series(c: Curve, i: int) -> Series:
    """Points in the order of the offered load, so that the curve turns upwards where no more can be carried."""
    points = [(summary.throughput, summary.normalised.p50) for _, summary in c.points]
    kind = "circle" if c.task.system.microbatch is None else "square"
    return Series(c.task.system.label, points, COLOURS[i], kind)


def _table_101b(curves: Sequence[Curve]) -> Table:
    rows = [
        [c.task.system.label, f"{c.capacity:.2f}", published.FIGURE_10A[c.task.system.label]]
        for c in curves if c.task.model == "101b"
    ]  # fmt: skip
    return Table("101B: the most requests/s (the paper's are read off its plot)", ["", "here", "the paper's"], rows)


def _capacities(panels: Sequence[tuple[str, Sequence[Curve]]]) -> Table:
    systems = [c.task.system.label for c in panels[0][1]]
    rows = [[system, *[f"{curves[i].capacity:.2f}" for _, curves in panels]] for i, system in enumerate(systems)]
    return Table("The most requests/s", ["", *[title for title, _ in panels]], rows)
