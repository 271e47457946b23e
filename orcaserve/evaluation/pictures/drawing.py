"""Drawing: rectangles, lines, dots and texts on a white sheet, in pixels from the upper left corner; and its SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
INK, FAINT = "#222222", "#777777"
Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle. hint: shown by a browser when the pointer rests on it."""

    x: float
    y: float
    width: float
    height: float
    fill: str = "none"
    stroke: str = "none"
    radius: float = 0.0
    hatched: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    points: Sequence[tuple[float, float]]
    stroke: str = INK
    width: float = 1.0
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Dot:
    """A mark around its middle. kind: circle, square, triangle, diamond or cross."""

    x: float
    y: float
    fill: str
    kind: str = "circle"
    size: float = 4.0
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """y is the baseline. turned: reads upwards. thick: in bold."""

    x: float
    y: float
    text: str
    size: float = 12.0
    anchor: Anchor = "start"
    fill: str = INK
    thick: bool = False
    turned: bool = False


Shape = Box | Line | Dot | Text


@dataclass(slots=True)
class Drawing:
    """A sheet; shapes added later lie above earlier ones."""

    width: float
    height: float
    shapes: list[Shape] = field(default_factory=list)

    def add(self, *shapes: Shape) -> None:
        self.shapes += shapes

    def svg(self) -> str:
        size = f'width="{self.width:g}" height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"'
        hatch = (
            '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><rect width="2" height="6" fill="white" fill-opacity="0.55"/>'
            "</pattern></defs>"
        )
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}">',
            hatch,
            '<rect width="100%" height="100%" fill="white"/>',
            *map(_element, self.shapes),
            "</svg>\n",
        ]
        return "\n".join(lines)


def beside(drawings: Sequence[Drawing], gap: float = 0.0) -> Drawing:
    """One sheet with all of them in a row."""
    sheet = Drawing(sum(d.width for d in drawings) + gap * (len(drawings) - 1), max(d.height for d in drawings))
    x = 0.0
    for drawing in drawings:
        sheet.add(*[_moved(shape, x, 0.0) for shape in drawing.shapes])
        x += drawing.width + gap
    return sheet


def below(drawings: Sequence[Drawing], gap: float = 0.0) -> Drawing:
    """One sheet with all of them in a column."""
    sheet = Drawing(max(d.width for d in drawings), sum(d.height for d in drawings) + gap * (len(drawings) - 1))
    y = 0.0
    for drawing in drawings:
        sheet.add(*[_moved(shape, 0.0, y) for shape in drawing.shapes])
        y += drawing.height + gap
    return sheet


def corners(dot: Dot) -> list[tuple[float, float]]:
    """The outline of a mark that is no circle; of a cross, its two lines one after the other."""
    x, y, r = dot.x, dot.y, dot.size
    match dot.kind:
        case "square":
            r *= 0.9
            return [(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)]
        case "triangle":
            return [(x, y - r * 1.2), (x + r * 1.1, y + r * 0.8), (x - r * 1.1, y + r * 0.8)]
        case "diamond":
            r *= 1.25
            return [(x, y - r), (x + r, y), (x, y + r), (x - r, y)]
        case "cross":
            return [(x - r, y - r), (x + r, y + r), (x - r, y + r), (x + r, y - r)]
    raise ValueError(dot.kind)


def _moved(shape: Shape, dx: float, dy: float) -> Shape:
    if isinstance(shape, Line):
        return replace(shape, points=[(x + dx, y + dy) for x, y in shape.points])
    return replace(shape, x=shape.x + dx, y=shape.y + dy)


def _element(shape: Shape) -> str:
    match shape:
        case Box():
            place = f'x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}"'
            look = f'fill="{shape.fill}" stroke="{shape.stroke}" rx="{shape.radius:g}"'
            over = f'<rect {place} fill="url(#hatch)" rx="{shape.radius:g}"/>' if shape.hatched else ""
            return f"<rect {place} {look}>{_title(shape.hint)}</rect>{over}"
        case Line():
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
            dash = ' stroke-dasharray="5 4"' if shape.dashed else ""
            look = f'stroke="{shape.stroke}" stroke-width="{shape.width:g}" stroke-linejoin="round"{dash}'
            return f'<polyline points="{points}" fill="none" {look}/>'
        case Dot(kind="circle"):
            circle = f'cx="{shape.x:.1f}" cy="{shape.y:.1f}" r="{shape.size:g}" fill="{shape.fill}"'
            return f"<circle {circle}>{_title(shape.hint)}</circle>"
        case Dot(kind="cross"):
            a, b, c, d = (f"{x:.1f} {y:.1f}" for x, y in corners(shape))
            return f'<path d="M{a}L{b}M{c}L{d}" stroke="{shape.fill}" stroke-width="2">{_title(shape.hint)}</path>'
        case Dot():
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners(shape))
            return f'<polygon points="{points}" fill="{shape.fill}">{_title(shape.hint)}</polygon>'
        case Text():
            place = f'x="{shape.x:.1f}" y="{shape.y:.1f}"'
            if shape.turned:
                place += f' transform="rotate(-90 {shape.x:.1f} {shape.y:.1f})"'
            look = f'font-size="{shape.size:g}" text-anchor="{shape.anchor}" fill={quoteattr(shape.fill)}'
            thick = ' font-weight="bold"' if shape.thick else ""
            return f"<text {place} {look}{thick}>{escape(shape.text)}</text>"


def _title(hint: str) -> str:
    return f"<title>{escape(hint)}</title>" if hint else ""
