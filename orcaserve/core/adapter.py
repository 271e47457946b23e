"""AdapterSource: which adapter a number stands for, below the endpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AdapterSource:
    """A low-rank adapter. number: 1 or more, and never used again, whatever becomes of the name.

    path: a folder as PEFT saves it. digest: of its files, which other ones are refused for; empty: any.
    """

    number: int
    name: str
    path: Path
    digest: str = ""


AdapterAnswer = Callable[[str | None], None]
"""Called once, from any thread, with why an adapter could not be loaded; None: it was, or is unloaded now."""
