"""Chart: curves over two axes, with a legend at the right."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from orcaserve.evaluation.pictures.drawing import FAINT, INK, Dot, Drawing, Line, Text

# Told apart by colour-blind eyes too (Okabe and Ito, Tol).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255", "#555555")
GRID = "#e4e4e4"
LEFT, TOP, BOTTOM, LEGEND = 62, 38, 48, 150
CHARACTER = 6.4  # pixels of one, on average, at size 12


@dataclass(frozen=True, slots=True)
class Series:
    """A curve. label: empty = not in the legend. kind: of its dots; empty for none. points: in the line's order."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: str
    kind: str = "circle"
    dashed: bool = False
    line: bool = True


@dataclass(frozen=True, slots=True)
class Axis:
    """low, high: None = from the points. ticks: None = chosen."""

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None
    ticks: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """A line across the whole chart at some y, with a word on it."""

    y: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    levels: Sequence[Level] = field(default_factory=tuple)
    width: float = 520
    height: float = 330
    legend: bool = True


def draw_chart(chart: Chart) -> Drawing:
    sheet = Drawing(chart.width, chart.height)
    right = chart.width - (LEGEND if chart.legend else 16)
    x = _Scale(chart.x, [p[0] for s in chart.series for p in s.points], LEFT, right)
    levels = [level.y for level in chart.levels]
    y = _Scale(chart.y, [p[1] for s in chart.series for p in s.points] + levels, chart.height - BOTTOM, TOP)
    sheet.add(Text(LEFT, 20, chart.title, 13, thick=True))
    _draw_axes(sheet, chart, x, y, right)
    for level in chart.levels:
        at = y.at(level.y)
        sheet.add(Line([(LEFT, at), (right, at)], FAINT, 1, dashed=True))
        sheet.add(Text(LEFT + 0.4 * (right - LEFT), at - 5, level.label, 11, "middle", FAINT))
    for series in chart.series:
        _draw_series(sheet, series, x, y)
    if chart.legend:
        _draw_legend(sheet, chart.series, right + 14)
    return sheet


class _Scale:
    """From values to pixels."""

    def __init__(self, axis: Axis, values: Iterable[float], first: float, last: float) -> None:
        finite = [value for value in values if math.isfinite(value) and (value > 0 or not axis.log)]
        self.log = axis.log
        low = axis.low if axis.low is not None else min(finite, default=1.0)
        high = axis.high if axis.high is not None else max(finite, default=10.0)
        if axis.low is None and not axis.log:
            low = min(low, 0.0)
        if high <= low:
            high = low * 10 if axis.log else low + 1
        if axis.log:
            low, high = (low / 1.12 if axis.low is None else low), (high * 1.12 if axis.high is None else high)
        elif axis.high is None:
            high += (high - low) * 0.06
        self.low, self.high, self._first, self._last = low, high, first, last
        ticks = axis.ticks if axis.ticks is not None else _log_ticks(low, high) if axis.log else _ticks(low, high)
        self.ticks = [tick for tick in ticks if low <= tick <= high * (1 + 1e-9)]

    def at(self, value: float) -> float:
        """Values beyond an end are drawn at it."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self._first + share * (self._last - self._first)


def _draw_axes(sheet: Drawing, chart: Chart, x: _Scale, y: _Scale, right: float) -> None:
    bottom = chart.height - BOTTOM
    for tick in x.ticks:
        at = x.at(tick)
        sheet.add(Line([(at, TOP), (at, bottom)], GRID), Text(at, bottom + 16, _number(tick), 11, "middle"))
    for tick in y.ticks:
        at = y.at(tick)
        sheet.add(Line([(LEFT, at), (right, at)], GRID), Text(LEFT - 6, at + 4, _number(tick), 11, "end"))
    sheet.add(Line([(LEFT, TOP), (LEFT, bottom), (right, bottom)], INK))
    sheet.add(Text((LEFT + right) / 2, chart.height - 12, chart.x.label, 12, "middle"))
    sheet.add(Text(16, (TOP + bottom) / 2, chart.y.label, 12, "middle", turned=True))


def _draw_series(sheet: Drawing, series: Series, x: _Scale, y: _Scale) -> None:
    """A curve ends where it leaves the chart above; what lies beyond is not drawn."""
    inside = []
    for point in series.points:
        inside.append((x.at(point[0]), y.at(point[1])))
        if point[1] > y.high and series.line:
            break
    if series.line and len(inside) > 1:
        sheet.add(Line(inside, series.colour, 2, series.dashed))
    if series.kind:
        for at, value in zip(inside, series.points, strict=False):
            if value[1] <= y.high:
                hint = f"{series.label}: {value[0]:.4g}, {value[1]:.4g}"
                sheet.add(Dot(*at, series.colour, series.kind, 3.6, hint))


def _draw_legend(sheet: Drawing, series: Sequence[Series], left: float) -> None:
    for row, one in enumerate(one for one in series if one.label):
        y = TOP + 10 + 20 * row
        if one.line:
            sheet.add(Line([(left, y), (left + 24, y)], one.colour, 2, one.dashed))
        if one.kind:
            sheet.add(Dot(left + 12, y, one.colour, one.kind, 3.6))
        sheet.add(Text(left + 30, y + 4, one.label, 12))


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers."""
    rough = (high - low) / 5
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    return [step * n for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = math.log10(high / low)
    factors = (1,) if decades > 4 else (1, 2, 5)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [factor * 10.0**power for power in range(first, last + 1) for factor in factors]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.3g}"
