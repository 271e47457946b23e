"""A look at the machine's processes, and a model to serve; server_process.py is imported by name."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from byte_tokenizer import add_tokenizer


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


@pytest.fixture(scope="session")
def served_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny random model with a tokenizer of single bytes and a chat template."""
    return add_tokenizer(tiny_model, tmp_path_factory.mktemp("served") / "tiny", 256)


@pytest.fixture(scope="session")
def served_odd_model(odd_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of the model for cutting. Its vocabulary ends before the last few bytes do."""
    return add_tokenizer(odd_model, tmp_path_factory.mktemp("served") / "odd", 251)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the server's temporary files go. It is empty again at the end, or the test fails."""
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder
