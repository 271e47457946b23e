"""A server in one of the cases: what it is asked, and what is looked at in every answer. Imported by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
from reciting import Recited
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

    def check(self, within: Any) -> None:
        assert self.http.get("/health").status_code == 200
        assert self.ask(max_tokens=8).json()["choices"][0]["text"] == self.known
        assert within(5, lambda: self.reserved() == 0), "slots stay reserved for nobody"
        log = "".join(self.log)
        assert "Traceback" not in log and SECRET not in log


def look_at(answer: httpx.Response) -> None:
    """An error is one object in OpenAI's form, of fixed words."""
    if answer.status_code < 400 or answer.request.method == "HEAD":
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


def started(recited: Recited, *flags: str) -> Iterator[Server]:
    server = Server(recited, *flags)
    try:
        yield server
        assert server.stop() == 0
    finally:
        server.process.kill()


def looked_after(server: Server, within: Any) -> Iterator[Server]:
    """The server in one case, and what must hold after every one."""
    yield server
    server.check(within)
