"""The cases of inputs that broke other servers, each at a real server over a real model.

A test's name begins with the number of its case. Cases whose place is below HTTP have more tests there: B01, B02, B04 in
serving/test_detokenizer.py; B06, B08, B09 in serving/test_text_stream.py; B50 in model/test_loader.py; B53 in
model/test_families.py; B54 in serving/test_tokenizer.py. What an engine without a model shows better (limits of seconds,
clients that never read) is in serving/http. B39, long prompts beside short ones, belongs to the scheduler's bounds and
is not answered yet.

After EVERY case: the server is healthy; the known greedy request gives its known text, which is transformers'; as many
slots are free as before; no answer held a traceback or the user's own words.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path[:0] = [str(Path(__file__).parent), *(str(Path(__file__).parents[1] / name) for name in ("", "multiprocess"))]
from reciting import Recited, as_gguf, reciting_gpt2, reciting_llama
from server_process import Serve

SECRET = "sesame-open-7f3a"  # in fields that errors must not repeat
FLOAT32 = ("--dtype", "float32", "--quantization", "none", "--kv-cache-dtype", "float32")
BFLOAT16 = ("--dtype", "bfloat16", "--quantization", "none", "--kv-cache-dtype", "bfloat16")
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "count"}]


class Server(Serve):
    """A running server of a model that is known, and every answer of which is looked at."""

    def __init__(self, recited: Recited, *flags: str) -> None:
        usual = ("--port", "0", "-t", "1", "--n-slots", "8192", "--served-model-name", "M")
        super().__init__(str(recited.path), *usual, *flags)
        self.recited = recited
        self.prompt = recited.script[:6]
        self.known = recited.greedy_text(self.prompt, 8)
        self.http.event_hooks["response"] = [look_at]

    def body(self, path: str = COMPLETIONS, **fields: Any) -> dict[str, Any]:
        """A good body, with these fields changed; those that are `...` are left out."""
        own = {"prompt": self.prompt} if path == COMPLETIONS else {"messages": MESSAGES}
        body = {"model": "M", "temperature": 0, "max_tokens": 4, "ignore_eos": True, "user": SECRET, **own, **fields}
        return {name: value for name, value in body.items() if value is not ...}

    def ask(self, path: str = COMPLETIONS, **fields: Any) -> httpx.Response:
        return self.http.post(path, json=self.body(path, **fields))

    def send(self, raw: bytes, path: str = COMPLETIONS) -> httpx.Response:
        return self.http.post(path, content=raw, headers={"content-type": "application/json"})

    def answer(self, path: str = COMPLETIONS, **fields: Any) -> dict[str, Any]:
        answer = self.ask(path, **fields)
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    def deltas(self, path: str = COMPLETIONS, **fields: Any) -> list[str]:
        """The texts of a stream of one choice; only the last event may be without one."""
        answer = self.ask(path, stream=True, **fields)
        assert answer.status_code == 200, answer.text
        frames = answer.text.split("\n\n")
        assert frames[-2:] == ["data: [DONE]", ""]
        choices = [json.loads(frame.removeprefix("data: "))["choices"][0] for frame in frames[:-2]]
        if path == CHAT:
            assert choices.pop(0)["delta"] == {"role": "assistant", "content": ""}
        texts = [c["text"] if path == COMPLETIONS else c["delta"].get("content", "") for c in choices]
        assert all(texts[:-1]), texts
        assert [c["finish_reason"] is None for c in choices] == [True] * (len(choices) - 1) + [False]
        return texts

    def both(self, path: str = COMPLETIONS, **fields: Any) -> tuple[str, str]:
        """Text and finish reason, which are the same streamed and whole."""
        [choice] = self.answer(path, **fields)["choices"]
        text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
        assert "".join(self.deltas(path, **fields)) == text
        return text, choice["finish_reason"]

    def ids(self, text: str) -> list[int]:
        answer = self.http.post("/tokenize", json={"prompt": text})
        assert answer.status_code == 200, answer.text
        ids: list[int] = answer.json()["tokens"]
        return ids

    def reserved(self) -> float:
        return self.metric("orcaserve_kv_slots_reserved")

    def check(self, reserved: float, within: Any) -> None:
        assert self.http.get("/health").status_code == 200
        assert self.ask(max_tokens=8).json()["choices"][0]["text"] == self.known
        assert within(5, lambda: self.reserved() == reserved)
        log = "".join(self.log)
        assert "Traceback" not in log and SECRET not in log


def look_at(answer: httpx.Response) -> None:
    """An error is one object in OpenAI's form, of fixed words."""
    if answer.status_code < 400:
        return
    answer.read()
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"] and error["type"], error
    for word in (SECRET, "Traceback", 'File "', ".py", "orcaserve/"):
        assert word not in answer.text, answer.text


def refused(answer: httpx.Response, param: str | None, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["param"] == param, error
    return error


@pytest.fixture(scope="session")
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


def started(recited: Recited, *flags: str) -> Iterator[Server]:
    server = Server(recited, *flags)
    try:
        yield server
        assert server.stop() == 0
    finally:
        server.process.kill()


@pytest.fixture(scope="session")
def gpt2_model(tmp_path_factory: pytest.TempPathFactory) -> Recited:
    return reciting_gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="session")
def llama_model(tmp_path_factory: pytest.TempPathFactory) -> Recited:
    return reciting_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def gguf_model(llama_model: Recited, tmp_path_factory: pytest.TempPathFactory) -> Recited:
    return as_gguf(llama_model, tmp_path_factory.mktemp("gguf") / "llama.gguf")


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


def looked_after(server: Server, within: Any) -> Iterator[Server]:
    """The server in one case, and what must hold after every one."""
    reserved = server.reserved()
    yield server
    server.check(reserved, within)


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
