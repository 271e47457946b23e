"""One request and its answer: whatever a server does, it is either whole or named."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import (
    DONE,
    STREAM_HEAD,
    Script,
    always,
    chunk,
    event,
    plain,
    scripted,
    stream,
    text_event,
    usage_event,
)

from orcaserve.core.errors import ConfigError
from orcaserve.evaluation.load.server import Address, ServerError
from orcaserve.evaluation.load.stream import Answer, StreamFailed

WHOLE = stream(text_event("a"), text_event(""), text_event("b") + text_event("c"), usage_event(5, 3), DONE)


def ask(script: Script, timeout: float = 5.0) -> tuple[Answer, list[float]]:
    async def run() -> tuple[Answer, list[float]]:
        times: list[float] = []
        async with scripted(script, within=timeout) as server:
            clock = asyncio.get_running_loop().time
            return await server.send(server.request({"prompt": [1, 2]}), clock, times.append), times

    return asyncio.run(run())


def failure(script: Script, timeout: float = 5.0) -> StreamFailed:
    with pytest.raises(StreamFailed) as caught:
        ask(script, timeout)
    return caught.value


def test_a_whole_stream() -> None:
    answer, times = ask(always(WHOLE))
    assert answer.streamed and answer.usage == {"prompt_tokens": 5, "completion_tokens": 3}
    assert len(times) == 3 and times == sorted(times) and times[-1] <= answer.last


@given(st.lists(st.integers(1, len(WHOLE) - 1), max_size=8))
@settings(max_examples=30)
def test_however_it_is_cut_into_pieces(cuts: list[int]) -> None:
    places = [0, *sorted(set(cuts)), len(WHOLE)]
    answer, times = ask(always(*(WHOLE[a:b] for a, b in pairwise(places))))
    assert len(times) == 3 and answer.usage["completion_tokens"] == 3


def test_lines_of_other_servers() -> None:
    raw = (b": ping\r\n\r\nevent: x\r\nid: 1\r\ndata:" + json.dumps({"choices": [{"text": "a"}]}).encode() + b"\r\n\r\n"
           b"data: [DONE]\r\n\r\n")  # fmt: skip
    answer, times = ask(always(STREAM_HEAD + chunk(raw) + b"0\r\n\r\n"))
    assert len(times) == 1 and answer.usage == {}


def test_chat_deltas() -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"content": "x"},
        {"reasoning_content": "y"},
        {},
    ]
    _, times = ask(always(stream(*(event({"choices": [{"delta": delta}]}) for delta in deltas), DONE)))
    assert len(times) == 2


def test_a_stream_that_ends_with_the_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    answer, times = ask(always(head, text_event("a"), DONE))
    assert answer.streamed and len(times) == 1


@pytest.mark.parametrize(
    ("pieces", "says", "detail"),
    [
        ([plain(429, b'{"error": {"message": "too\\nmany"}}')], "HTTP 429", "too many"),
        ([plain(500, b"<html>oops</html>", "text/html")], "HTTP 500", "<html>oops</html>"),
        ([plain(503, b'{"error": "busy"}')], "HTTP 503", "busy"),
        ([b""], "the connection was closed without an answer", ""),
        ([b"HTTP/1.1 200"], "the connection was closed without an answer", ""),
        ([b"SSH-2.0-x\r\n"], "the answer is not HTTP", ""),
        ([STREAM_HEAD], "the stream broke", "closed before data: [DONE]"),
        ([STREAM_HEAD + chunk(text_event("a")), chunk(text_event("b"))[:-9]], "the stream broke", "closed before"),
        ([stream(text_event("a"))], "the stream broke", "it ended without data: [DONE]"),
        ([stream(text_event("a"), event({"error": {"message": "lost"}}))], "the stream ended with an error", "lost"),
        ([stream(event(b"{"))], "an event of the stream is no answer", "{"),
        ([stream(event(b"[1]"))], "an event of the stream is no answer", "[1]"),
        ([stream(event({"choices": [{}]}))], "an event of the stream is no answer", "choices"),
        ([stream(event({"choices": [7]}))], "an event of the stream is no answer", "7"),
        ([STREAM_HEAD + chunk(b"data: " + b"x" * (2**20 + 1))], "an event of the stream is too long", ""),
    ],
)
def test_what_is_no_whole_stream_is_named(pieces: list[bytes], says: str, detail: str) -> None:
    failed = failure(always(*pieces))
    assert str(failed) == says and detail in failed.detail
    assert len(failed.detail.splitlines()) <= 1


def test_a_server_that_says_nothing() -> None:
    async def silent(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        await asyncio.sleep(1)

    assert str(failure(silent, timeout=0.1)) == "no end within 0.1 s"


def test_an_answer_that_is_no_stream_is_kept() -> None:
    answer, times = ask(always(plain(200, b'{"choices": []}')))
    assert not answer.streamed and json.loads(answer.body) == {"choices": []} and not times


def test_nobody_there() -> None:
    async def find(url: str) -> Address:
        return await Address.find(url)

    with pytest.raises(ServerError, match="nobody answers there"):
        asyncio.run(find("http://127.0.0.1:1"))
    for url in ("", "127.0.0.1:80", "ftp://x", "http://", "http://h:99999", "http://h:x", "http://[::1"):
        with pytest.raises(ConfigError, match="BASE_URL"):
            asyncio.run(find(url))


def test_paths_with_and_without_v1() -> None:
    async def prefixes() -> list[str]:
        listener = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        async with listener:
            return [
                (await Address.find(f"http://127.0.0.1:{port}{path}")).prefix for path in ("", "/", "/v1", "/a/v1/")
            ]

    assert asyncio.run(prefixes()) == ["/v1", "/v1", "/v1", "/a/v1"]
