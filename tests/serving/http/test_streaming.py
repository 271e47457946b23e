"""How events reach a client: written where the news arrive, or kept and merged while they cannot be."""

from __future__ import annotations

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from orcaserve.serving.text_stream import TextStream

FIELDS = {"model": "tiny", "prompt": "the", "temperature": 0}


def texts_of(answer: bytes, n: int) -> tuple[list[str], int]:
    """The text of each choice of a whole stream, and the number of events."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and b"transfer-encoding: chunked" in head
    parts, rest = [], body
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        assert rest[int(size, 16) :][:2] == b"\r\n"
        rest = rest[int(size, 16) + 2 :]
    frames = [frame for frame in b"".join(parts).decode().split("\n\n") if frame]
    assert frames.pop() == "data: [DONE]"
    texts, ended = [""] * n, [0] * n
    for frame in frames:
        [choice] = json.loads(frame.removeprefix("data: "))["choices"]
        assert not ended[choice["index"]], "nothing comes after the end"
        texts[choice["index"]] += choice["text"]
        ended[choice["index"]] += choice["finish_reason"] is not None
    assert ended == [1] * n
    return texts, len(frames)


def read_all(raw: socket.socket) -> bytes:
    answer = b""
    while not answer.endswith(b"\r\n0\r\n\r\n"):
        part = raw.recv(65536)
        assert part, answer[-300:]
        answer += part
    return answer


def post(**fields: Any) -> bytes:
    body = json.dumps({**FIELDS, **fields, "stream": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def test_streams_that_have_begun_get_comments_while_there_is_no_engine(server: Any) -> None:
    whole = server.complete(max_tokens=20).json()["choices"][0]["text"]

    def keep_alive() -> None:
        asyncio.run_coroutine_threadsafe(call(), server.loop).result(5)

    async def call() -> None:
        server.app.keep_streams_alive()

    server.engine.pause = True
    with server.connection() as waiting, server.connection() as begun:
        waiting.sendall(post(max_tokens=20))
        server.wait_until(lambda: server.engine.n_open == 1)
        keep_alive()
        waiting.settimeout(0.1)
        with pytest.raises(TimeoutError):
            waiting.recv(1)  # its status is still to be chosen
        waiting.settimeout(10)
        server.engine.pause, server.engine.seconds_per_token = False, 0.02
        begun.sendall(post(max_tokens=20))
        answer = begun.recv(65536)
        while b"data: " not in answer:
            answer += begun.recv(65536)
        keep_alive()
        keep_alive()
        answer += read_all(begun)
        comment = b"1a\r\n: waiting for the engine\n\n\r\n"
        assert answer.count(comment) == 2
        assert texts_of(answer.replace(comment, b""), 1)[0] == [whole]
        assert texts_of(read_all(waiting).replace(comment, b""), 1)[0] == [whole]
    server.engine.seconds_per_token = 0.001
    keep_alive()
    assert server.http.get("/live").content == b'{"status":"live"}'


@pytest.mark.parametrize("n", [1, 5])
def test_a_client_that_reads_gets_each_token_by_itself(server: Any, n: int) -> None:
    whole = server.complete(max_tokens=20).json()["choices"][0]["text"]
    server.engine.seconds_per_token = 0.005
    with server.connection() as raw:
        raw.sendall(post(max_tokens=20, n=n))
        texts, n_events = texts_of(read_all(raw), n)
    assert texts == [whole] * n
    assert n_events > 10 * n, "most tokens complete a character"


def test_what_a_slow_client_has_not_read_comes_merged_and_in_order(server: Any) -> None:
    n, listener = 32, server._listener
    whole = server.complete(max_tokens=120).json()["choices"][0]["text"]
    before = server.service.metrics.finished["length"]
    size = listener.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    try:
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.connect(("127.0.0.1", server.port))
            raw.settimeout(10)
            raw.sendall(post(max_tokens=120, n=n))
            server.wait_until(lambda: server.service.metrics.finished["length"] == before + n)
            texts, n_events = texts_of(read_all(raw), n)
    finally:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size // 2)
    assert texts == [whole] * n
    assert n < n_events < 60 * n


def test_any_asgi_server_will_do(server: Any) -> None:
    """Without our HTTP protocol beneath it the application sends all events itself."""
    body = json.dumps({**FIELDS, "max_tokens": 20, "stream": True}).encode()
    received = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not received:
            await asyncio.Event().wait()
        return received.pop()

    async def send(message: dict[str, Any]) -> None:
        await asyncio.sleep(0.002)  # it holds the application up, as a slow client does
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}
    asyncio.run_coroutine_threadsafe(server.app(scope, receive, send), server.loop).result(10)
    start, *parts = sent
    assert start["status"] == 200 and [part["more_body"] for part in parts] == [True] * (len(parts) - 1) + [False]
    frames = b"".join(part["body"] for part in parts).decode().split("\n\n")
    shown = "".join(json.loads(frame[6:])["choices"][0]["text"] for frame in frames if frame.startswith("data: {"))
    assert shown == server.complete(max_tokens=20).json()["choices"][0]["text"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at", [0, 5])
def test_a_mistake_of_ours_fails_its_request_alone(
    server: Any, stream: bool, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    push, script, bad = TextStream.push, server.engine.script, 9

    def broken_push(self: TextStream, token: int | None, *args: Any) -> str:
        if token == bad:
            raise ZeroDivisionError
        return push(self, token, *args)

    monkeypatch.setattr(TextStream, "push", broken_push)
    server.engine.script = lambda request, n: bad if request.params.top_k == 7 and n == at else script(request, n)
    server.engine.seconds_per_token = 0.005
    with ThreadPoolExecutor() as pool:
        good = pool.submit(server.complete, max_tokens=60, stream=True)
        server.wait_until(lambda: server.engine.n_open == 1)
        if stream and at:
            with server.connection() as raw:
                raw.sendall(post(max_tokens=60, top_k=7))
                answer = b""
                while part := raw.recv(65536):
                    answer += part
            assert b"data: " in answer and b"DONE" not in answer
            assert not answer.endswith(b"\r\n0\r\n\r\n"), "an answer that was cut must not look complete"
        else:
            answer = server.complete(max_tokens=60, top_k=7, stream=stream)
            assert answer.status_code == 500 and answer.json()["error"]["code"] == "internal_error"
        assert good.result().text.endswith("data: [DONE]\n\n")
    assert server.engine.cancelled == [server.engine.seen[-1].id]
