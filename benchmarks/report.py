"""What every result file says: date, machine, command; and tables in Markdown."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path


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
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *(Path(a).name for a in sys.argv[1:])])
    first = (question or "").strip().splitlines()[0]
    return f"# {title}\n\n{first}\n\n{date.today()}; {machine()}\n\n    {command}\n\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def write(text: str, path: str | None) -> None:
    print(text)
    if path:
        Path(path).write_text(text)
