"""Plots beside the result files, as SVG and PNG. They need matplotlib (extra `bench`); without it they are left out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from machine_limits import Limits
    from peers import Share
    from scaling import Series


def plot_peers(shares: Sequence[Share], limits: Limits, beside: Path) -> bool:
    """Tokens/s by batch size, and the roofline: operations/s by the operations that a byte of weights is read for."""
    pyplot = _pyplot()
    if pyplot is None:
        return False
    figure, (speed, roof) = pyplot.subplots(1, 2, figsize=(13, 5.5), layout="constrained")
    for share in shares:
        own = share.subject.engine == "orcaserve"
        style = {"marker": "o" if own else "s", "linewidth": 2.2 if own else 1.0, "linestyle": "-" if own else "--"}
        batches = sorted(share.decode)
        speed.plot(batches, [share.decode[b] for b in batches], label=str(share.subject), **style)
        per_byte = share.operations_per_token / share.bytes_per_token
        reached = [share.operations_per_token * share.decode[b] / 1e9 for b in batches]
        roof.plot([b * per_byte for b in batches], reached, label=str(share.subject), **style)
    _logarithmic(speed, "requests at once", "tokens/s, decoding")
    _draw_roofs(roof, shares, limits)
    _logarithmic(roof, "operations per byte of weights", "GOP/s")
    speed.legend(fontsize=8)
    _save(figure, beside)
    return True


def plot_scaling(series: Sequence[Series], beside: Path) -> bool:
    """Time of an iteration against what it grows with: one panel each, with the straight line that fits best."""
    pyplot = _pyplot()
    if pyplot is None:
        return False
    size = (5.5 * len(series), 4.5)
    figure, panels = pyplot.subplots(1, len(series), figsize=size, layout="constrained", squeeze=False)
    for panel, one in zip(panels[0], series, strict=True):
        fitted = f"straight line, R² {one.line.r_squared:.4f}"
        panel.plot(one.x, [y * 1e3 for y in one.seconds], "o", label="measured")
        panel.plot(one.x, [one.line.at(x) * 1e3 for x in one.x], "-", label=fitted)
        panel.set(xlabel=one.along, ylabel="ms per iteration", title=one.name, ylim=(0, None), xlim=(0, None))
        panel.grid(alpha=0.3)
        panel.legend()
    _save(figure, beside)
    return True


def _draw_roofs(axes: Any, shares: Sequence[Share], limits: Limits) -> None:
    """For every kind of arithmetic in use: bandwidth times intensity, up to the peak."""
    memory = min(limits.reads.values())
    intensities = [2 ** (i / 8) for i in range(-16, 73)]
    kinds: dict[float, list[str]] = {}  # those with the same peak share a line
    for kind in dict.fromkeys(share.subject.form for share in shares):
        peak = limits.arithmetic(kind)
        if peak is not None and kind in limits.operations:
            kinds.setdefault(peak, []).append(kind)
    for peak, names in kinds.items():
        axes.plot(intensities, [min(peak, memory * x) for x in intensities], color="0.4", linewidth=1.2)
        label = f"{', '.join(names)}: {peak:,.0f}"
        axes.text(intensities[-1], peak, label, ha="right", va="bottom", fontsize=8, color="0.3")


def _logarithmic(axes: Any, x: str, y: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
    axes.grid(which="both", alpha=0.25)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axis.set_minor_formatter(lambda value, _: f"{value:,.10g}" if f"{value:e}"[0] in "25" else "")


def _pyplot() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print("no plot: matplotlib is missing (pip install -e '.[bench]')", file=sys.stderr)
        return None
    return pyplot


def _save(figure: Any, beside: Path) -> None:
    for ending in (".svg", ".png"):
        figure.savefig(beside.with_suffix(ending), dpi=130)
