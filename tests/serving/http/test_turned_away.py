"""Requests that are turned away while the door is full: what goes over the wire, byte by byte."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from orcaserve.config import ApiKey
from orcaserve.serving import app as app_module
from orcaserve.serving import http_protocol
from orcaserve.serving.http import Exchange
from orcaserve.serving.porter import SMALL

PATH = "/v1/completions"
GOOD = {"model": "tiny", "prompt": "the", "temperature": 0, "max_tokens": 4}
RAW = json.dumps(GOOD).encode()
JSON = {"content-type": "application/json"}


def head(path: str = PATH, length: int | None = len(RAW), **headers: str) -> bytes:
    lines = {"host": "x", **JSON} | {name.replace("_", "-"): value for name, value in headers.items()}
    if length is not None:
        lines["content-length"] = str(length)
    return "".join([f"POST {path} HTTP/1.1\r\n", *(f"{n}: {v}\r\n" for n, v in lines.items()), "\r\n"]).encode()


class Answers:
    """What comes on a connection, answer by answer."""

    def __init__(self, raw: socket.socket) -> None:
        self.raw = raw
        self._data = b""

    def next(self) -> tuple[int, dict[str, str], bytes]:
        while b"\r\n\r\n" not in self._data:
            self._read()
        top, _, self._data = self._data.partition(b"\r\n\r\n")
        status, *lines = top.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        length = int(headers.get("content-length", 0))
        while len(self._data) < length:
            self._read()
        body, self._data = self._data[:length], self._data[length:]
        return int(status.split()[1]), headers, body

    def _read(self) -> None:
        data = self.raw.recv(65536)
        assert data, "the server has closed the connection"
        self._data += data

    def is_closed(self, seconds: float) -> bool:
        self.raw.settimeout(seconds)
        with contextlib.suppress(ConnectionResetError, TimeoutError):
            return self.raw.recv(1) == b""
        return False


@contextlib.contextmanager
def full(server: Any, **headers: str) -> Iterator[None]:
    """While this lasts the door is full."""
    server.engine.pause = True
    with ThreadPoolExecutor(16) as pool:
        n = 8 + server.app.config.max_queued_reqs  # places of the engine, and the queue
        said = {**JSON, **headers}
        answers = [pool.submit(httpx.post, server.base + PATH, content=RAW, headers=said, timeout=30) for _ in range(n)]
        server.wait_until(lambda: server.engine.n_open == n)
        try:
            yield
        finally:
            server.engine.pause = False
        assert all(answer.result().status_code == 200 for answer in answers)
    server.wait_until(lambda: server.engine.n_open == 0)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the requests that the application has heard of."""
    paths: list[str] = []

    class Counted(Exchange):
        def __init__(self, scope: Any, *args: Any) -> None:
            paths.append(scope["path"])
            super().__init__(scope, *args)

    monkeypatch.setattr(app_module, "Exchange", Counted)
    return paths


@pytest.mark.parametrize("path", [PATH, "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_it_is_as_the_usual_answer_and_the_application_hears_nothing(
    other_server: Any, begun: list[str], path: str, stream: bool
) -> None:
    server = other_server(max_queued_reqs=1)
    with full(server):
        begun.clear()
        quick = server.post(path, {**GOOD, "stream": stream})
        assert begun == [] and quick.status_code == 429
        usual = server.post(path, {**GOOD, "stream": stream}, **{"content-type": "application/json; charset=utf-8"})
        assert begun == [path] and usual.status_code == 429
        assert quick.json() == usual.json() and quick.json()["error"]["code"] == "overloaded"
        assert {*quick.headers} == {*usual.headers}
        assert re.fullmatch(r"(cmpl|chatcmpl)-[0-9a-f]{24}", quick.headers["x-request-id"])
        assert int(quick.headers["retry-after"]) >= 1
        assert server.service.metrics.refused["overloaded"] == 2
        named = server.post(path, GOOD, **{"x-request-id": "mine"})
        assert named.headers["x-request-id"] == "mine" and named.headers["x-orcaserve-request-id"]
        assert server.post(path, GOOD, **{"x-request-id": "a b"}).headers["x-request-id"] != "a b"
        assert server.service.door.n_waiting == 9  # nothing has been begun: the engine has said nothing yet
    server.check_well()


def test_the_connection_stays(other_server: Any, begun: list[str]) -> None:
    """Whatever comes in between: bodies in any pieces, other requests, one that is taken."""
    server = other_server(max_queued_reqs=1)
    with server.connection() as raw:
        answers = Answers(raw)
        with full(server):
            begun.clear()
            for _ in range(3):
                raw.sendall(head() + RAW)
                assert answers.next()[0] == 429
            for cut in (1, 30, len(RAW) - 1):  # the answer does not wait for the body, and the body is passed over
                raw.sendall(head() + RAW[:cut])
                assert answers.next()[0] == 429
                raw.sendall(RAW[cut:])
            raw.sendall((head() + RAW) * 5)
            assert [answers.next()[0] for _ in range(5)] == [429] * 5
            raw.sendall(head(length=SMALL) + b" " * SMALL)
            assert answers.next()[0] == 429
            assert begun == []
            raw.sendall(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
            assert answers.next()[0] == 200
            raw.sendall(head() + RAW)
            status, headers, _ = answers.next()
            assert status == 429 and "connection" not in headers
        raw.sendall(head(x_stainless_retry_count="1") + RAW)
        status, _, body = answers.next()
        assert status == 200 and json.loads(body)["usage"]["completion_tokens"] == 4
    server.check_well()


def test_the_key_comes_first(other_server: Any, begun: list[str]) -> None:
    keys = (ApiKey("fast", "k-fast"), ApiKey("slow", "k-slow"))
    server = other_server(max_queued_reqs=1, api_keys=keys)
    with full(server, authorization="Bearer k-fast"):
        begun.clear()
        assert server.post(PATH, GOOD, authorization="Bearer k-slow").status_code == 429
        assert begun == []
        for wrong in ({}, {"authorization": "Bearer nobody"}, {"authorization": "k-slow"}):
            answer = server.post(PATH, GOOD, **wrong)
            assert answer.status_code == 401 and "retry-after" not in answer.headers
        assert {who for _, who in server.service.door._promises} == {"slow"}


def test_what_is_wrong_for_itself_is_said_first(other_server: Any) -> None:
    """Coming back would not help."""
    server = other_server(max_queued_reqs=1, max_body_bytes=100_000)
    with full(server):
        for status, request in (
            (415, head(content_type="text/plain", origin="http://evil") + RAW),
            (413, head(length=100_001)),
            (404, head("/v1/completion") + RAW),
            (405, b"GET /v1/completions HTTP/1.1\r\nhost: x\r\n\r\n"),
        ):
            with server.connection() as raw:
                raw.sendall(request)
                assert Answers(raw).next()[0] == status
        assert server.service.metrics.refused["overloaded"] == 0


@pytest.mark.parametrize(
    "request_head",
    [
        head(length=SMALL + 1),
        head(length=None, transfer_encoding="chunked"),
        head(expect="100-continue"),
    ],
    ids=["large", "chunked", "expects"],
)
def test_bodies_that_are_not_small_are_not_waited_for(other_server: Any, request_head: bytes) -> None:
    """The answer comes instead of the body, and of `100 Continue`; then the connection closes."""
    server = other_server(max_queued_reqs=1)
    with full(server), server.connection() as raw:
        answers = Answers(raw)
        raw.sendall(request_head)
        status, headers, _ = answers.next()
        assert status == 429 and headers["connection"] == "close" and int(headers["retry-after"]) >= 1
        assert answers.is_closed(5.0)
    server.check_well()


def test_who_wants_to_be_asked_is_asked_when_there_is_room(other_server: Any) -> None:
    server = other_server(max_queued_reqs=1)
    with server.connection() as raw:
        answers = Answers(raw)
        raw.sendall(head(expect="100-continue"))
        assert answers.next()[0] == 100
        raw.sendall(RAW)
        assert answers.next()[0] == 200


@pytest.mark.parametrize("version", ["1.0", "close"])
def test_who_does_not_stay(other_server: Any, version: str) -> None:
    server = other_server(max_queued_reqs=1)
    request = head(connection="close") if version == "close" else head().replace(b"HTTP/1.1", b"HTTP/1.0")
    with full(server), server.connection() as raw:
        answers = Answers(raw)
        raw.sendall(request + RAW)
        status, headers, _ = answers.next()
        assert status == 429 and headers["connection"] == "close"
        assert answers.is_closed(5.0)


def test_a_body_that_does_not_come_ends_the_connection(other_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", 0.3)
    server = other_server(max_queued_reqs=1)
    with full(server), server.connection() as raw:
        answers = Answers(raw)
        raw.sendall(head() + RAW[:-1])
        assert answers.next()[0] == 429
        assert answers.is_closed(5.0)
    server.check_well()


def test_who_does_not_read_fills_no_memory(other_server: Any) -> None:
    """Requests without end, and none of the answers is read: the server stops, and the connection ends."""
    server = other_server(max_queued_reqs=1, write_timeout=0.5)
    with full(server), server.connection() as raw:
        raw.settimeout(10.0)
        many = (head() + RAW) * 1000
        began, sent = time.monotonic(), 0
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            while time.monotonic() - began < 10:
                raw.sendall(many)
                sent += 1000
        assert server.service.metrics.refused["overloaded"] < 100_000
    server.check_well()


def test_lines_and_the_way_out(other_server: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = other_server(max_queued_reqs=1, log_requests=True)
    with full(server), caplog.at_level(logging.INFO, logger="orcaserve.requests"):
        assert server.post(PATH, GOOD, **{"x-request-id": "mine"}).status_code == 429
        server.wait_until(lambda: any("status=429" in line for line in caplog.messages))
        (line,) = [line for line in caplog.messages if "status=429" in line]
        assert "client_id=mine" in line and f"method=POST route={PATH}" in line and "error=overloaded" in line
        server.on_loop(server.app.drain)
        for body in (GOOD, {**GOOD, "padding": "x" * SMALL}):  # nobody is told to come back to a server that ends
            answer = server.post(PATH, body)
            assert answer.status_code == 503 and answer.json()["error"]["code"] == "stopping"


@pytest.mark.parametrize("n", [1, 40])
def test_each_is_promised_a_time_of_its_own(other_server: Callable[..., Any], n: int) -> None:
    server = other_server(max_queued_reqs=1)
    with full(server):
        told = [int(server.post(PATH, GOOD).headers["retry-after"]) for _ in range(n)]
        assert told == sorted(told) and len(server.service.door._promises) == n
