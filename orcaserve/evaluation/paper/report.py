"""The report: one HTML file that needs nothing beside it; and the same as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape

from orcaserve.evaluation.paper.anchors import Anchors, anchors_table
from orcaserve.evaluation.paper.figure import Figure, Table
from orcaserve.simulation.device_memory import KEPT_BACK
from orcaserve.simulation.hardware import A100_40GB
from orcaserve.simulation.paper import FASTER_TRANSFORMER, ORCA, ORCA_ENGINE
from orcaserve.simulation.transformer_cost import Factors
from orcaserve.version import __version__

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 Georgia, 'Liberation Serif', serif; color: #222; background: #f6f5f1; margin: 0; }
main { max-width: 1240px; margin: 0 auto; padding: 2.5rem 1.5rem 5rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.35rem; margin: 0 0 .5rem; }
p { max-width: 46rem; margin: .4rem 0 1rem; }
section { background: #fff; border: 1px solid #e2e0d8; border-radius: 8px; padding: 1.6rem 1.8rem; margin: 1.6rem 0; }
figure { margin: 1rem 0 1.4rem; overflow-x: auto; }
figure svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; font: 13px/1.5 Helvetica, Arial, sans-serif; margin: .4rem 0 1.4rem; }
caption { text-align: left; font-weight: bold; padding: .2rem 0; white-space: nowrap; }
th, td { padding: .18rem .8rem .18rem 0; text-align: right; border-bottom: 1px solid #eceae3; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td:first-child { white-space: pre; }
.bad { color: #b00020; font-weight: bold; }
.tables { display: flex; flex-wrap: wrap; gap: 0 3rem; }
footer { color: #777; font-size: .85rem; }
"""
_INTRO = (
    "The system of “Orca: A Distributed Serving System for Transformer-Based Generative Models” (OSDI 2022) was never "
    "released. Here its evaluation is run again: the scheduler and the policies are the ones that serve, in virtual "
    "time; how long an iteration takes comes from one fixed set of factors for the paper’s A100 machines, fitted on "
    "figures of a single system each. The comparisons are fitted on nothing."
)


def html(figures: Sequence[Figure], anchors: Anchors | None) -> str:
    sections = [_section(figure) for figure in figures]
    if anchors is not None:
        text = (
            "What the paper’s comparison stands on: 190 ms a token is twice what Orca takes for one in Figure 9c. "
            "The last line is read off the two above it."
        )
        sections.insert(0, f"<section><h2>Anchors</h2><p>{text}</p>{_table(anchors_table(anchors))}</section>")
    if any(figure.name != "live" for figure in figures) or anchors is not None:
        sections.append(
            f"<section><h2>Factors</h2><div class=tables>{''.join(map(_table, factor_tables()))}</div></section>"
        )
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8><title>Orca’s evaluation, reproduced</title>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main><h1>Orca’s evaluation, reproduced</h1><p>{escape(_INTRO)}</p>\n"
        + "\n".join(sections)
        + f"\n<footer>orcaserve {escape(__version__)}, <code>orcaserve reproduce</code></footer></main></body></html>\n"
    )


def as_json(figures: Sequence[Figure], anchors: Anchors | None) -> dict[str, object]:
    """Every point, the factors, and the anchors if they were measured."""
    data: dict[str, object] = {
        "version": __version__,
        "figures": {figure.name: {"title": figure.title, "points": list(figure.points)} for figure in figures},
        "factors": factors(),
    }
    return data if anchors is None else data | {"anchors": anchors.as_json()}


def factors() -> dict[str, object]:
    """All that the times of the paper's systems are made of."""
    return {
        "hardware": asdict(A100_40GB),
        "kept_back_bytes": KEPT_BACK,
        "engine": asdict(ORCA_ENGINE),
        "orca": _other(ORCA),
        "ft": _other(FASTER_TRANSFORMER),
    }


def factor_tables() -> list[Table]:
    gib = 2**30
    hardware = [
        ["memory", f"{A100_40GB.memory_bytes / gib:.1f} GiB"],
        ["   of it kept back", f"{KEPT_BACK / gib:.1f} GiB"],
        ["memory bandwidth", f"{A100_40GB.bandwidth / 1e9:,.0f} GB/s"],
        ["16-bit arithmetic", f"{A100_40GB.peak / 1e12:,.0f} TFLOP/s"],
        ["between machines", f"{A100_40GB.network / 1e9:,.0f} GB/s"],
    ]
    shared = [
        ["share of the bandwidth", f"{ORCA_ENGINE.bandwidth_share:.0%}"],
        ["a layer's launches, norms, activation", f"{ORCA_ENGINE.kernel_seconds * 1e6:.0f} µs"],
        ["attention of each further request, a layer", f"{ORCA_ENGINE.split_seconds * 1e6:.0f} µs"],
        ["   for so many requests at most", str(ORCA_ENGINE.split_most)],
        ["to the next stage, beside the bytes", f"{ORCA_ENGINE.send_seconds * 1e6:.0f} µs"],
    ]
    both = (ORCA, FASTER_TRANSFORMER)
    differ = [
        ["factor of all times", *[f"{one.overhead:g}" for one in both]],
        ["attention of each further request", *[f"{one.split_seconds * 1e6:g} µs" for one in both]],
        ["pads to the longest of a batch", *["yes" if one.padded else "no" for one in both]],
    ]
    by_tokens = [[f"{tokens:,.0f}", f"{share:.0%}"] for tokens, share in ORCA_ENGINE.efficiency]
    by_bytes = [[f"{size / 1e6:g} MB", f"{seconds * 1e3:.3f} ms"] for size, seconds in ORCA_ENGINE.all_reduce]
    return [
        Table("A100-40GB", ["", ""], hardware),
        Table("Both engines", ["", ""], shared),
        Table("Where the systems differ, end to end", ["", "Orca", "FasterTransformer"], differ),
        Table("Share of the arithmetic", ["input tokens", ""], by_tokens),
        Table("All-reduce of 8 devices", ["bytes", ""], by_bytes),
    ]


def _other(factors: Factors) -> Mapping[str, object]:
    """Where they differ from the shared ones."""
    shared = asdict(ORCA_ENGINE)
    return {name: value for name, value in asdict(factors).items() if value != shared[name]}


def _section(figure: Figure) -> str:
    name = f"Figure {figure.name}" if figure.name.isdigit() else "This machine"
    tables = "".join(map(_table, figure.tables))
    return (
        f"<section><h2>{name}: {escape(figure.title)}</h2><p>{escape(figure.about)}</p>"
        f"<figure>{figure.drawing.svg()}</figure><div class=tables>{tables}</div></section>"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.heading)
    rows = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in table.rows)
    thead = f"<thead><tr>{head}</tr></thead>" if any(table.heading) else ""
    return f"<table><caption>{escape(table.title)}</caption>{thead}<tbody>{rows}</tbody></table>"


def _cell(text: str) -> str:
    return f"<td class=bad>{text}</td>" if text == "NO" else f"<td>{escape(text)}</td>"
