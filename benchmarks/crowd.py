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
from typing import Any, cast

NAME = "measured"  # of the model, for clients
_RETRY = re.compile(rb"\r\nretry-after: (\d+)", re.I)
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.I)
_CODE = re.compile(rb'"code": ?"(\w+)"')
_TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')


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


class Connection(asyncio.Protocol):
    """One client. Opens its connection anew where the server has closed it.

    On a transport, not on streams, and an answer is searched, not parsed: what a client costs, the server lacks.
    """

    def __init__(self, base: str) -> None:
        self._host, _, port = base.removeprefix("http://").rpartition(":")
        self._port = int(port)
        self._transport: asyncio.Transport | None = None
        self._answer = b""
        self._end = 0  # of the answer, once its header is here
        self._sent = 0.0
        self._asked: asyncio.Future[Reply] | None = None

    def request(self, body: dict[str, Any], attempt: int = 0, **headers: str) -> bytes:
        """As it is sent. attempt: how often it was sent before."""
        raw = json.dumps(body).encode()
        lines = {"host": self._host, "content-type": "application/json", "content-length": str(len(raw))}
        lines |= {"x-stainless-retry-count": str(attempt)}
        lines |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + raw

    async def ask(self, body: dict[str, Any], attempt: int = 0, **headers: str) -> Reply:
        request = self.request(body, attempt, **headers)
        await self.open()
        return await self.send(request)

    async def open(self) -> None:
        """Idempotent."""
        if not self.is_open:
            await asyncio.get_running_loop().create_connection(lambda: self, self._host, self._port)

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes) -> asyncio.Future[Reply]:
        """Over the open connection; the answer is the future's. A ConnectionError if there is none."""
        assert self._transport is not None and self._asked is None
        self._asked = asyncio.get_running_loop().create_future()
        self._sent = time.perf_counter()
        self._transport.write(request)
        return self._asked

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has its own class

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if not self._end:
            top = self._answer.find(b"\r\n\r\n") + 4
            if top < 4:
                return
            length = _LENGTH.search(self._answer)
            assert length is not None, self._answer
            self._end = top + int(length[1])
        if len(self._answer) == self._end:
            answer, self._answer, self._end = self._answer, b"", 0
            asked, self._asked = self._asked, None
            if asked is not None and not asked.done():
                asked.set_result(self._read(answer))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self._answer, self._end = None, b"", 0
        asked, self._asked = self._asked, None
        if asked is not None and not asked.done():
            asked.set_exception(exc or ConnectionError("the server has closed the connection"))

    def _read(self, answer: bytes) -> Reply:
        status, retry, code = int(answer[9:12]), _RETRY.search(answer), _CODE.search(answer)
        n_tokens = 0
        if status == 200:
            found = _TOKENS.search(answer)
            assert found is not None, answer
            code, n_tokens = None, int(found[1])
        return Reply(
            self._sent,
            time.perf_counter(),
            status,
            None if retry is None else int(retry[1]),
            None if code is None else code[1].decode(),
            n_tokens,
        )


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
    """Have of the cores only what the server, which was started before, leaves: real clients are elsewhere. A lower
    priority (nice) would not do: it says little where processes are in groups, as sessions are on many systems.
    """
    os.nice(10)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def resident(pid: int) -> float:
    """MiB that a process has in memory."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def children(pid: int) -> list[int]:
    return [int(c) for task in Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()]


def cpu_seconds(pid: int) -> float:
    """That all threads of a process have used so far, as the kernel counts them: in hundredths."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
