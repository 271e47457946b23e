"""A server that streams without a model: `python stand_in_server.py --port PORT --gap MILLISECONDS`.

It answers /v1/models and /v1/completions. All streams get a token together every so many milliseconds, as from a server
that batches them; with 0 as fast as their clients read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from contextlib import suppress

TOKEN = (
    b'data: {"id":"cmpl-0123456789abcdef01234567","object":"text_completion","created":1764547200,"model":"none",'
    b'"choices":[{"index":0,"text":" whale","logprobs":null,"finish_reason":null}],"usage":null}\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Ticks:
    """Wakes all streams at once, time and again."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._next = asyncio.Event()

    async def run(self) -> None:
        due = asyncio.get_running_loop().time()
        while True:
            due += self.seconds
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            current, self._next = self._next, asyncio.Event()
            current.set()

    async def wait(self) -> None:
        if self.seconds:
            await self._next.wait()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ticks: Ticks) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        head = await reader.readuntil(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
        body = json.loads(await reader.readexactly(int(lengths[0]))) if lengths else {}
        if not body.get("stream"):
            whole = {"data": [{"id": "none"}], "usage": {"prompt_tokens": len(body.get("prompt", ""))}, "choices": []}
            raw = json.dumps(whole).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(raw), raw))
        else:
            await stream(writer, ticks, int(body["max_tokens"]), len(body["prompt"]))
        await writer.drain()
        writer.close()
        await writer.wait_closed()


async def stream(writer: asyncio.StreamWriter, ticks: Ticks, n_tokens: int, n_input: int) -> None:
    writer.write(HEAD)
    for _ in range(n_tokens):
        await ticks.wait()
        writer.write(chunk(TOKEN))
        await writer.drain()
    usage = {"prompt_tokens": n_input, "completion_tokens": n_tokens}
    end = b'data: {"choices":[],"usage":%s}\n\ndata: [DONE]\n\n' % json.dumps(usage).encode()
    writer.write(chunk(end) + b"0\r\n\r\n")


async def main(port: int, seconds: float) -> None:
    ticks = Ticks(seconds)
    server = await asyncio.start_server(lambda r, w: answer(r, w, ticks), "127.0.0.1", port, backlog=1024)
    async with server, asyncio.TaskGroup() as group:
        group.create_task(server.serve_forever())
        if seconds:
            group.create_task(ticks.run())


if __name__ == "__main__":
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--gap", type=float, required=True)
    args = parser.parse_args()
    uvloop.run(main(args.port, args.gap / 1e3))
