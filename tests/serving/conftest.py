"""Tiny tokenizers of both kinds, and the default model's; engines without a model in place of processes."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from orcaserve.serving import supervisor
from orcaserve.serving.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))
from fake_engines import FakeProcess

CORPUS = [
    "The quick brown fox jumps over the lazy dog. Once upon a time there was a fox.",
    "def add(a, b):\n    return a + b  # 1 + 1 = 2\n\n\n",
    "Grüße aus Köln, ça va? 你好，世界 🦙 don't we'll",
    "Once upon a time, once upon a time; the fox the dog the fox 123 456",
] * 4

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


def byte_level_parts() -> tuple[list[str], list[str]]:
    """Tokens and merges of a small byte-level BPE, trained here; three control tokens come first."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|endoftext|>", "<|user|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    model = json.loads(backend.to_str())["model"]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    return tokens, [" ".join(merge) for merge in model["merges"]]


def sentencepiece_parts() -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and types of a small SentencePiece vocabulary with byte tokens."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "<|user|>"]
    types = [2, 3, 3, *[6] * 256, 4]
    words = ["▁the", "▁fox", "▁Once", "▁upon", "▁a", "▁time", "▁Hello", "Hello", "hi", "▁hi", "▁dog", "▁▁", "ça"]
    pieces = dict.fromkeys(w[:n] for w in words for n in range(2, len(w) + 1))
    letters = dict.fromkeys("▁" + "".join(CORPUS[0] + CORPUS[3]).replace(" ", "") + "Hlço")
    tokens += [*pieces, *(c for c in letters if c not in pieces)]
    n = len(tokens)
    types += [1] * (n - len(types))
    scores = [0.0] * 260 + [-float(i) for i in range(n - 260)]
    return tokens, scores, types


@pytest.fixture(scope="session")
def byte_level_metadata() -> dict[str, object]:
    tokens, merges = byte_level_parts()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }


@pytest.fixture(scope="session")
def sentencepiece_metadata() -> dict[str, object]:
    tokens, scores, types = sentencepiece_parts()
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


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
