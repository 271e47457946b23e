"""Figure: what one figure of the report holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orcaserve.evaluation.pictures.drawing import Drawing


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """For a terminal: columns of one width, the first one left, numbers right."""
        lines = [self.heading, *self.rows] if any(self.heading) else self.rows
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.heading))]
        shown = [
            "  ".join([line[0].ljust(widths[0]), *[c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True)]])
            for line in lines
        ]
        return "\n".join([self.title, *[f"  {line.rstrip()}" for line in shown]])


@dataclass(frozen=True, slots=True)
class Figure:
    """name: as `--figure` takes it. about: two sentences. points: all that is drawn, and more, for `--json`."""

    name: str
    title: str
    about: str
    drawing: Drawing
    tables: Sequence[Table] = ()
    points: Sequence[Mapping[str, object]] = field(default_factory=tuple)
