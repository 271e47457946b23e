"""Tiny tokenizers of both kinds, and the default model's; engines without a model in place of processes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from orcaserve.serving import supervisor
from orcaserve.serving.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import vocabularies
from fake_engines import FakeProcess

TEXTS = [
    "Hello",
    " Hello",
    "\n\n",
    "<|user|>hi",
    "<|im_start|>hi<|im_end|>\n",
    "1234567890 12 3",
    "a  1   22",
    "Grüße, ça va, naïve, Å",
    "👩‍🚀 🦙 汉 Ď",
    "a\nb 깰 🦙",
    "Say A.\u0000 Say B.",
    "\u0000",
    "",
    "▁Once ▁ upon",
    "def f(x):\n\treturn x  \r\n",
    "don't WE'LL I'd",
    "The quick brown fox 1234.5 " * 300,
]


@pytest.fixture(params=TEXTS, ids=lambda text: repr(text[:12]))
def sample_text(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def byte_level_metadata() -> dict[str, object]:
    return vocabularies.byte_level_metadata()


@pytest.fixture(scope="session")
def sentencepiece_metadata() -> dict[str, object]:
    return vocabularies.sentencepiece_metadata()


@pytest.fixture(scope="session")
def byte_level(byte_level_metadata: dict[str, object]) -> Tokenizer:
    from orcaserve.serving.gguf_tokenizer import tokenizer_from_metadata

    return tokenizer_from_metadata(byte_level_metadata)


@pytest.fixture(scope="session")
def byte_fallback(sentencepiece_metadata: dict[str, object]) -> Tokenizer:
    from orcaserve.serving.gguf_tokenizer import tokenizer_from_metadata

    return tokenizer_from_metadata(sentencepiece_metadata)


@pytest.fixture(scope="session")
def metaspace() -> Tokenizer:
    """A vocabulary whose decoder is Metaspace alone, as T5's is."""
    backend = Backend(models.WordLevel({"<unk>": 0, "▁a": 1, "b": 2, "▁": 3, "▁▁c": 4, "</s>": 5}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["</s>"])
    return Tokenizer(backend, {"eos_token": "</s>"})


@pytest.fixture(scope="session")
def default_tokenizer(default_model: Path) -> Tokenizer:
    return Tokenizer.from_path(default_model)


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
