"""Steps of a program that speaks with a server through a client: one line of JSON for each, whatever becomes of the
others, and a last one with their number.

Standard library only: programs run in the clients' own environments.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

Step = Callable[[], Awaitable[None] | None]


def run(steps: Sequence[Step]) -> int:
    """Run all; what a step does is its docstring. Returns how many failed."""
    failed = 0
    for step in steps:
        error = None
        try:
            coroutine = step()
            if coroutine is not None:
                asyncio.run(_finished(coroutine))
        except Exception as problem:
            error = _reason(problem)
            traceback.print_exc()
            failed += 1
        print(json.dumps({"step": (step.__doc__ or step.__name__).strip(), "error": error}), flush=True)
    print(json.dumps({"steps": len(steps)}))
    return failed


def same(found: Any, expected: Any) -> None:
    if found != expected:
        raise AssertionError(f"{_short(found)}, expected {_short(expected)}")


def refused(status: int, act: Callable[[], Any]) -> Any:
    """The error that `act` raises, which must have this status."""
    try:
        answer = act()
    except Exception as error:
        found = getattr(error, "status_code", None)
        if found != status:
            raise AssertionError(f"{type(error).__name__} with status {found}, expected {status}") from error
        return error
    raise AssertionError(f"not refused: {_short(answer)}")


async def _finished(awaitable: Awaitable[None]) -> None:
    await awaitable


def _reason(problem: Exception) -> str:
    try:
        text = str(problem)
    except Exception as error:  # some clients' exceptions cannot be written when an answer is not as they expect
        text = f"cannot be written: {error}"
    if not text:  # a plain assert: its source says what did not hold
        frames = traceback.extract_tb(problem.__traceback__)
        text = next((frame.line or "" for frame in reversed(frames) if frame.filename == sys.argv[0]), "")
    return f"{type(problem).__name__}: {' '.join(text.split())[:300]}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
