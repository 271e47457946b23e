"""Clients that programs speak through: the steps of a program become a run's steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from bench import Bench
from outcome import Step

PROGRAMS = Path(__file__).with_name("programs")


def spoken(script: str) -> Callable[[Bench], list[Step]]:
    """A run of this program: it is told the address and the model, nothing else."""

    def run(bench: Bench) -> list[Step]:
        finished = bench.program(PROGRAMS / script, bench.base, bench.model)
        said = [json.loads(line) for line in finished.out.splitlines() if line.startswith('{"step')]
        steps = [Step(line["step"], line["error"]) for line in said if "step" in line]
        failed = any(step.error for step in steps)
        if {"steps": len(steps)} not in said or finished.code is None or (finished.code != 0) != failed:
            steps.append(Step("the program ends", finished.problem or "it left steps out"))
        return steps

    return run
