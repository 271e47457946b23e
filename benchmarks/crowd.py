"""Many clients of a server, each on a connection that stays, in one asyncio loop that takes little of the machine."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = "measured"  # of the model, for clients
_RETRY = re.compile(rb"\r\nretry-after: (\d+)", re.I)
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.I)


@dataclass(frozen=True, slots=True)
class Reply:
    """sent, ended: on time.perf_counter(). retry_after: seconds, of a refusal. code: of an error."""

    sent: float
    ended: float
    status: int
    retry_after: int | None
    code: str | None
    n_tokens: int

    @property
    def seconds(self) -> float:
        return self.ended - self.sent


class Connection:
    """One client. Opens its connection anew where the server has closed it."""

    def __init__(self, base: str) -> None:
        self._host, _, port = base.removeprefix("http://").rpartition(":")
        self._port = int(port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, body: dict[str, Any], attempt: int = 0, **headers: str) -> Reply:
        raw = json.dumps(body).encode()
        lines = {"host": self._host, "content-type": "application/json", "content-length": str(len(raw))}
        lines |= {"x-stainless-retry-count": str(attempt)}
        lines |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        request = f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + raw
        if self._streams is None or self._streams[0].at_eof():  # the server closes those that are idle
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        sent = time.perf_counter()
        writer.write(request)
        top = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(top)
        assert length is not None, top
        answer = json.loads(await reader.readexactly(int(length[1])))
        retry = _RETRY.search(top)
        code = answer["error"]["code"] if "error" in answer else None
        n_tokens = answer["usage"]["completion_tokens"] if code is None else 0
        return Reply(
            sent, time.perf_counter(), int(top.split()[1]), None if retry is None else int(retry[1]), code, n_tokens
        )

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


def body_of(rng: random.Random, prompt: int, most: int) -> dict[str, Any]:
    """A request of random ids that generates between a half and all of `most` tokens."""
    ids = [rng.randint(100, 40000) for _ in range(prompt)]
    return {"model": NAME, "prompt": ids, "max_tokens": rng.randint(most // 2, most), "temperature": 0,
            "ignore_eos": True}  # fmt: skip


async def closed_loop(base: str, n: int, seconds: float, rng: random.Random, prompt: int, most: int) -> list[Reply]:
    """n clients that send the next request when the last is over."""
    replies: list[Reply] = []
    until = time.perf_counter() + seconds

    async def client() -> None:
        connection = Connection(base)
        while time.perf_counter() < until:
            replies.append(await connection.ask(body_of(rng, prompt, most)))
        connection.close()

    await asyncio.gather(*(client() for _ in range(n)))
    return replies


def be_nice() -> None:
    """Let the server, which was started before, have the cores first."""
    os.nice(10)


def resident(pid: int) -> float:
    """MiB that a process has in memory."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def children(pid: int) -> list[int]:
    return [int(c) for task in Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()]
