"""A drawing as PNG, painted by matplotlib, which the extra `bench` brings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orcaserve.core import ConfigError
from orcaserve.evaluation.pictures.drawing import Box, Dot, Drawing, Line, Text, corners

DOTS_PER_PIXEL = 2


def have_matplotlib() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def save_png(drawing: Drawing, path: Path) -> None:
    """Raises ConfigError if there is no matplotlib."""
    if not have_matplotlib():
        raise ConfigError("PNG", "needs matplotlib: pip install 'orcaserve[bench]'")
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Circle, FancyBboxPatch, Polygon, Rectangle

    figure = Figure(figsize=(drawing.width / 100, drawing.height / 100), dpi=100 * DOTS_PER_PIXEL, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, drawing.width)
    axes.set_ylim(drawing.height, 0)
    axes.axis("off")
    for order, shape in enumerate(drawing.shapes):
        match shape:
            case Box():
                look: dict[str, Any] = {
                    "facecolor": shape.fill,
                    "edgecolor": shape.stroke,
                    "linewidth": 0.72,
                    "zorder": order,
                }
                if shape.hatched:
                    look |= {"hatch": "////", "edgecolor": "white", "linewidth": 0.0}
                r = min(shape.radius, shape.width / 2, shape.height / 2)
                if r:
                    x, y, width, height = shape.x + r, shape.y + r, shape.width - 2 * r, shape.height - 2 * r
                    axes.add_patch(
                        FancyBboxPatch((x, y), width, height, boxstyle=f"round,pad={r},rounding_size={r}", **look)
                    )
                else:
                    axes.add_patch(Rectangle((shape.x, shape.y), shape.width, shape.height, **look))
            case Line():
                xs, ys = zip(*shape.points, strict=True)
                line = Line2D(xs, ys, color=shape.stroke, linewidth=shape.width * 0.72, zorder=order)
                if shape.dashed:
                    line.set_dashes((4, 3))
                axes.add_line(line)
            case Dot(kind="circle"):
                axes.add_patch(Circle((shape.x, shape.y), shape.size, facecolor=shape.fill, zorder=order))
            case Dot(kind="cross"):
                a, b, c, d = corners(shape)
                for (x1, y1), (x2, y2) in ((a, b), (c, d)):
                    axes.add_line(Line2D([x1, x2], [y1, y2], color=shape.fill, linewidth=1.5, zorder=order))
            case Dot():
                axes.add_patch(Polygon(corners(shape), facecolor=shape.fill, zorder=order))
            case Text():
                axes.text(
                    shape.x,
                    shape.y,
                    shape.text.replace("$", r"\$"),
                    fontsize=shape.size * 0.68,  # the fonts at hand are wider than the SVG's
                    color=shape.fill,
                    ha={"start": "left", "middle": "center", "end": "right"}[shape.anchor],
                    va="baseline",
                    fontweight="bold" if shape.thick else "normal",
                    rotation=90 if shape.turned else 0,
                    rotation_mode="anchor",
                    zorder=order,
                )
    figure.savefig(path, format="png")
