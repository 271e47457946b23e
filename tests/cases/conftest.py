"""The cases of inputs that broke other servers, each at a real server over a real model.

A test's name begins with the number of its case. Cases whose place is below HTTP have more tests there: B01, B02, B04
in serving/test_detokenizer.py; B06, B08, B09 in serving/test_text_stream.py; B50 in model/test_loader.py; B53 in
model/test_families.py; B54 in serving/test_tokenizer.py. What an engine without a model shows better (limits of
seconds, clients that never read) is in serving/http. B39, long prompts beside short ones, belongs to the scheduler's
bounds and is not answered yet.

After EVERY case: the server is healthy; the known greedy request gives its known text, which is transformers'; as many
slots are free as before; no answer held a traceback or the user's own words.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "multiprocess"))
sys.path.insert(0, str(Path(__file__).parent))
from case_server import BFLOAT16, FLOAT32, Server, looked_after, started
from reciting import Recited, as_gguf, reciting_gpt2, reciting_llama


@pytest.fixture(scope="session")
def gpt2_model(byte_level_metadata: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Recited:
    return reciting_gpt2(tmp_path_factory.mktemp("gpt2"), byte_level_metadata)


@pytest.fixture(scope="session")
def llama_model(sentencepiece_metadata: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Recited:
    return reciting_llama(tmp_path_factory.mktemp("llama"), sentencepiece_metadata)


@pytest.fixture(scope="session")
def gguf_model(
    llama_model: Recited, sentencepiece_metadata: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Recited:
    return as_gguf(llama_model, tmp_path_factory.mktemp("gguf") / "llama.gguf", sentencepiece_metadata)


@pytest.fixture(scope="session")
def gpt2_server(gpt2_model: Recited) -> Iterator[Server]:
    yield from started(gpt2_model, *FLOAT32)


@pytest.fixture(scope="session")
def gpt2_bfloat16_server(gpt2_model: Recited) -> Iterator[Server]:
    yield from started(gpt2_model, *BFLOAT16)


@pytest.fixture(scope="session")
def llama_server(llama_model: Recited) -> Iterator[Server]:
    yield from started(llama_model, *FLOAT32)


@pytest.fixture(scope="session")
def gguf_server(gguf_model: Recited) -> Iterator[Server]:
    yield from started(gguf_model, *FLOAT32)


@pytest.fixture
def gpt2(gpt2_server: Server, within: Any) -> Iterator[Server]:
    yield from looked_after(gpt2_server, within)


@pytest.fixture(params=["gpt2", "llama", "gguf"])
def server(request: pytest.FixtureRequest, within: Any) -> Iterator[Server]:
    """One model after the other: byte-level tokens, SentencePiece with byte fallback, and the latter as GGUF has it."""
    yield from looked_after(request.getfixturevalue(f"{request.param}_server"), within)


@pytest.fixture(params=["llama", "gguf"])
def llama(request: pytest.FixtureRequest, within: Any) -> Iterator[Server]:
    yield from looked_after(request.getfixturevalue(f"{request.param}_server"), within)


@pytest.fixture(params=["gpt2", "gpt2_bfloat16"], ids=["float32", "bfloat16"])
def both_forms(request: pytest.FixtureRequest, within: Any) -> Iterator[Server]:
    """GPT-2 in float32 and in bfloat16."""
    yield from looked_after(request.getfixturevalue(f"{request.param}_server"), within)
