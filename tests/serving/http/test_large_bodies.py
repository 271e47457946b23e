"""What one body, or many, may cost: the event loop goes on beside it, and work is bounded."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from orcaserve.serving.fields import MAX_WORK

SIZE = 4 * 2**20
LONGEST_PAUSE = 0.5  # s that the event loop may stand still; under 0.1 on a quiet machine, and 0.7 to 1.5 on the loop


def filled(start: str, unit: str, end: str) -> bytes:
    """A body of the largest size that repeats `unit`."""
    return f"{start}{unit * ((SIZE - len(start) - len(end)) // len(unit))}{end}".encode()


BODIES = {
    "lists": filled('{"model":"tiny","x":[', "[],", "1]}"),
    "objects": filled('{"model":"tiny","x":[', "{},", "1]}"),
    "objects with keys": filled('{"model":"tiny","x":[', '{"a":1},', "1]}"),
    "strings": filled('{"model":"tiny","x":[[' + "[" * 61 + "]" * 61 + "],", '"",', "1]}"),
    "escapes": filled('{"model":"tiny","x":"', "\\ud83e\\udd99", '"}'),
    "quotes in a text": filled('{"model":"tiny","prompt":"', '\\"[{', '"}'),
    "numbers": filled('{"model":"tiny","x":[', "1,", "1]}"),
    "floats": filled('{"model":"tiny","x":[', "1.5,", "1]}"),
    "unknown fields": b'{"model":"tiny",' + b",".join(b'"%d":0' % i for i in range(300_000)) + b"}",
    "unknown fields of odd names": b'{"model":"tiny",' + b",".join(b'"<%d":0' % i for i in range(300_000)) + b"}",
    "prompt": filled('{"model":"tiny","prompt":[', "300,", "1]}"),
    "prompts": filled('{"model":"tiny","prompt":[', "[" + "300," * 2000 + "1],", "[1]]}"),
    "long text": filled('{"model":"tiny","prompt":"', "the quick brown fox ", '"}'),
    "stop ids": filled('{"model":"tiny","stop_token_ids":[', "5,", "1]}"),
    "bias": b'{"model":"tiny","logit_bias":{' + b",".join(b'"%d":0' % i for i in range(300_000)) + b"}}",
    "tokens": filled('{"tokens":[', "300,", "1]}"),
    "messages": filled(
        '{"model":"tiny","messages":[',
        '{"role":"user","content":"' + "a" * 1000 + '"},',
        '{"role":"user","content":""}]}',
    ),
    "parts": filled('{"model":"tiny","messages":[{"role":"user","content":[', '{"type":"text","text":"a"},', "{}]}]}"),
}


class Heartbeat:
    """The longest time for which the server's event loop did not come round."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.longest = 0.0
        self._task = asyncio.run_coroutine_threadsafe(self._beat(), loop)

    async def _beat(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, time.monotonic() - before)

    def stop(self) -> float:
        self._task.cancel()
        return self.longest


@pytest.mark.parametrize("name", BODIES)
def test_no_body_holds_the_event_loop(large: Any, name: str) -> None:
    paths = {
        "tokens": ["/detokenize"],
        "long text": ["/v1/completions", "/tokenize"],
        "messages": ["/v1/chat/completions"],
        "parts": ["/v1/chat/completions"],
        "quotes in a text": ["/v1/completions", "/tokenize"],
    }
    for path in paths.get(name, ["/v1/completions"]):
        heart = Heartbeat(large.loop)
        answer = large.post(path, BODIES[name])
        assert heart.stop() < LONGEST_PAUSE
        assert answer.status_code in (200, 400), answer.text
    large.check_well()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [5] * 100, "n": 128, "logit_bias": {str(i): 0 for i in range(370)}}, None),
        ({"prompt": [[5] * 100] * 8, "n": 128, "logit_bias": {str(i): 0 for i in range(370)}, "stop": "x" * 50}, "n"),
        ({"prompt": [[5] * 100] * 1024, "stop": ["x" * 1000]}, "prompt"),
        ({"prompt": [[5] * 100] * 1024, "stop_token_ids": list(range(370)), "stop": "x" * 50}, "prompt"),
        ({"prompt": [5], "n": 128, "stop": ["x" * 1024] * 4}, "n"),
    ],
)
def test_the_work_of_a_request_is_limited(large: Any, fields: dict[str, Any], param: str | None) -> None:
    large.engine.seen.clear()
    answer = large.complete(max_tokens=1, **fields)
    if param is None:
        assert answer.status_code == 200, answer.text
    else:
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param
        assert str(MAX_WORK) in answer.json()["error"]["message"] and large.engine.seen == []
    assert str(MAX_WORK) in large.http.get("/docs").text


@dataclass
class Held:
    begun: list[str] = field(default_factory=list)
    free: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def held(large: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Reading a body that leaves the event loop takes until `free` is set; `begun` has those that were."""
    held, encode = Held(), large.tokenizer.encode
    monkeypatch.setattr(large.tokenizer, "longest_token", 10**6)  # no text is too long to be encoded

    def slow(text: str, special: bool = True) -> list[int]:
        if len(text) > 4096:
            held.begun.append(text)
            held.free.wait(10)
            text = "the"
        return list(encode(text, special))

    large.tokenizer.encode = slow
    yield held
    held.free.set()
    large.tokenizer.encode = encode
    large.wait_until(lambda: large.app.n_live == 0)
    large.check_well()


def test_nothing_is_done_for_clients_that_have_left(large: Any, held: Held) -> None:
    body = json.dumps({"model": "tiny", "prompt": "x" * 5000}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    for _ in range(20):
        with large.connection() as raw:
            raw.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            large.wait_until(lambda: large.app._threads._waiting_bytes > 0)
        large.wait_until(lambda: large.app.n_live == 0)
    assert large.complete(prompt="the").status_code == 200  # what is small does not wait
    held.free.set()
    assert large.complete(prompt="x" * 5001).status_code == 200
    assert [len(text) for text in held.begun] == [5000, 5000, 5001]  # one for each thread, begun while both were free


def test_what_waits_for_the_threads_is_bounded(large: Any, held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orcaserve.serving.threads.MAX_WAITING_BYTES", 100_000)
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(large.complete, prompt="x" * 20_000) for _ in range(12)]
        large.wait_until(lambda: sum(answer.done() for answer in asked) == 8)
        held.free.set()
        answers = [answer.result() for answer in asked]
    assert sorted(answer.status_code for answer in answers) == [200] * 4 + [503] * 8
    for answer in answers:
        if answer.status_code == 503:
            assert answer.headers["retry-after"] and answer.json()["error"]["code"] == "overloaded"


def test_a_text_that_cannot_fit_is_not_encoded(large: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding takes a hundred times the text's memory, and what cannot fit is refused anyway."""
    monkeypatch.setattr(large.tokenizer, "encode", lambda *_: pytest.fail("it was encoded"))
    limit = large.app.service.facts.longest_request * large.tokenizer.longest_token
    asks = {
        "/v1/completions": ("prompt", {"prompt": "x" * (limit + 1)}),
        "/tokenize": (
            "prompt",
            {"prompt": "x" * (large.app.service.facts.context_length * large.tokenizer.longest_token + 1)},
        ),
        "/v1/chat/completions": ("messages", {"messages": [{"role": "user", "content": "x" * (limit + 1)}]}),
    }
    for path, (param, fields) in asks.items():
        answer = large.post(path, json.dumps({"model": "tiny", **fields}).encode())
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param
        assert answer.json()["error"]["code"] == "context_length_exceeded"
