"""A look at the machine's processes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """All tests share one event loop: gRPC may bring the end of a call that was given up to a loop that is closed."""
    yield


@pytest.fixture
def alive() -> Callable[[int], bool]:
    """Does this process still run? One that waits for somebody to take its exit code does not."""

    def look(pid: int) -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        return state not in "ZX"

    return look


@pytest.fixture
def within() -> Callable[[float, Callable[[], bool]], bool]:
    """Does the condition come true within so many seconds?"""

    def wait(seconds: float, condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    return wait
