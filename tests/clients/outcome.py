"""What came of a client's run: steps that held or failed, and how it was called."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was run. error: why it failed; None if what came back was right."""

    what: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One client's run.

    version: of the client, `-` if it could not be installed. commands: as they were typed, the address being
    http://127.0.0.1:8000. date: of the run, YYYY-MM-DD.
    """

    client: str
    version: str
    date: str
    commands: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def failed(self) -> bool:
        return not self.steps or any(step.error is not None for step in self.steps)

    def save(self, folder: Path) -> None:
        """Keep it beside the client's environment, for the table in docs."""
        (folder / "outcome.json").write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, folder: Path) -> Outcome | None:
        """The last run's; None if there was none."""
        file = folder / "outcome.json"
        if not file.exists():
            return None
        kept: dict[str, Any] = json.loads(file.read_text())
        steps = tuple(Step(**step) for step in kept.pop("steps"))
        return cls(commands=tuple(kept.pop("commands")), steps=steps, **kept)


def table(outcomes: Sequence[Outcome]) -> list[tuple[str, str, str, str]]:
    """Rows of client, version, what was run, and `pass` or why it failed."""
    return [
        (outcome.client, outcome.version, step.what, "pass" if step.error is None else f"FAIL: {step.error}")
        for outcome in outcomes
        for step in outcome.steps
    ]
