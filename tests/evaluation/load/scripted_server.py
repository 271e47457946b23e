"""A server on a real socket that answers as a test tells it to, byte by byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from orcaserve.evaluation.load.server import Address, Server

Script = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def text_event(text: str) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": None}], "usage": None})


def usage_event(n_input: int, n_output: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": n_input, "completion_tokens": n_output}})


DONE = event(b"[DONE]")


def stream(*events: bytes) -> bytes:
    """A whole answer."""
    return STREAM_HEAD + b"".join(map(chunk, events)) + b"0\r\n\r\n"


def plain(status: int, body: bytes, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def always(*pieces: bytes) -> Script:
    async def script(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return script


@asynccontextmanager
async def scripted(script: Script, endpoint: str = "completions", within: float = 5.0) -> AsyncIterator[Server]:
    """A Server to such a one. The connection is closed once the script is through."""

    handlers: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                head = await reader.readuntil(b"\r\n\r\n")
                lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(lengths[0].partition(b":")[2])) if lengths else b"{}"
                await script(json.loads(body), writer)
                await writer.drain()
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.create_task(serve(reader, writer)))

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        async with listener:
            yield Server(await Address.find(f"http://127.0.0.1:{port}"), endpoint, None, within)
    finally:
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
