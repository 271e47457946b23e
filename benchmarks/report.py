"""What every result file says: date, machine, command; tables in Markdown; and lines of the table of goals."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table of goals. ours, best: figures; best names whose it is. passed: None = not measured."""

    what: str
    goal: str
    ours: str
    best: str
    ratio: str
    passed: bool | None


def machine() -> str:
    """Processor, usable cores, memory."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.machine()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{cpu}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB"


def heading(title: str, question: str | None) -> str:
    arguments = [Path(a).name if Path(a).is_absolute() else a for a in sys.argv[1:]]
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *arguments])
    first = (question or "").strip().splitlines()[0]
    return f"# {title}\n\n{first}\n\n{date.today()}; {machine()}\n\n    {command}\n\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def mark(passed: bool | None) -> str:
    return "not measured" if passed is None else "PASS" if passed else "**FAIL**"


def goal_table(lines: Iterable[Line]) -> str:
    columns = ["", "goal", "ours", "against", "ratio", ""]
    return table(columns, [[x.what, x.goal, x.ours, x.best, x.ratio, mark(x.passed)] for x in lines])


def add_line_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lines", metavar="FILE", help="add lines of the table of goals to this file, as JSON")


def write_lines(lines: Iterable[Line], path: str | None) -> None:
    """Add lines to the file that goals.py makes a table of."""
    if path:
        with open(path, "a") as file:
            file.writelines(json.dumps(asdict(line)) + "\n" for line in lines)


def read_lines(path: str) -> list[Line]:
    with open(path) as file:
        return [Line(**json.loads(text)) for text in file]


def write(text: str, path: str | None) -> None:
    print(text)
    if path:
        Path(path).write_text(text)
