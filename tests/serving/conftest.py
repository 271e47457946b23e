"""Engines without a model in place of processes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import pytest

from orcaserve.serving import supervisor

sys.path.insert(0, str(Path(__file__).parent))
from fake_engines import FakeProcess


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """All who use it share one event loop: gRPC may bring the end of a call that was given up to one that is closed."""
    yield


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> type[FakeProcess]:
    """What supervisors start, in place of processes."""

    class Processes(FakeProcess):
        started: ClassVar[list[FakeProcess]] = []
        load_error = None
        start_error = None
        n_slots = 4096

    monkeypatch.setattr(supervisor, "EngineProcess", Processes)
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.02)
    return Processes
