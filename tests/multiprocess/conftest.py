"""A look at the machine's processes, and a model to serve; server_process.py is imported by name."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

sys.path.insert(0, str(Path(__file__).parent))
from server_process import BYTES


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


def add_tokenizer(model: Path, folder: Path, vocabulary_size: int) -> Path:
    shutil.copytree(model, folder)
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    letter = {b: chr(b) for b in printable} | {b: chr(0x100 + i) for i, b in enumerate(others)}
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {letter[b]: BYTES + b for b in range(vocabulary_size - BYTES)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.save(str(folder / "tokenizer.json"))
    template = "<s>{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the server's temporary files go. It is empty again at the end, or the test fails."""
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder
