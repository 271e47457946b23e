"""The schedule and descriptions of requests, over a real Unix socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from orcaserve.control_plane.schedule_sink import MOST_ON_THE_WAY, ScheduleSink
from orcaserve.core import EngineError, LiveState, Request, SamplingParams

pytestmark = pytest.mark.anyio
MakeRig = Callable[..., AbstractAsyncContextManager[Any]]


def request(id: int, n_input: int = 3, max_tokens: int = 5) -> Request:
    return Request(id, list(range(n_input)), SamplingParams(max_tokens=max_tokens))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


class Lines:
    def __init__(self) -> None:
        self.chunks: list[bytes] = []

    def __call__(self, lines: bytes) -> None:
        assert lines.endswith(b"\n")
        self.chunks.append(lines)

    def of(self, kind: str) -> list[Any]:
        lines = [json.loads(line) for chunk in self.chunks for line in chunk.splitlines()]
        return [line for line in lines if (line.get("kind") if isinstance(line, dict) else line[0]) == kind]

    @property
    def headers(self) -> list[Any]:
        return self.of("orcaserve-schedule")


async def test_a_header_and_then_lines(rig: MakeRig) -> None:
    async with rig() as r:
        lines = Lines()
        r.client.watch(lines)
        await until(lambda: len(lines.headers) == 1)
        news = [each async for each in r.client.submit(request(7))]
        assert news
        await until(lambda: len(lines.of("r")) == 5)
        assert lines.chunks[0].count(b"\n") == 1, "the header comes by itself"
        assert [line[2] for line in lines.of("a")] == [7]
        assert lines.of("r")[-1][4] == [[7, "length", 5]]
        assert lines.headers[0]["part"] == 2 and lines.headers[0]["live"] == []


async def test_nothing_is_told_before_and_after(rig: MakeRig) -> None:
    async with rig() as r:
        [each async for each in r.client.submit(request(1))]
        lines = Lines()
        r.client.watch(lines)
        await until(lambda: len(lines.headers) == 1)
        r.client.watch(None)
        [each async for each in r.client.submit(request(2))]
        assert r.host.watches == [True, False] and len(lines.chunks) == 1
        r.client.watch(lines)
        await until(lambda: len(lines.headers) == 2)
        [each async for each in r.client.submit(request(3))]
        await until(lambda: len(lines.of("r")) == 5)
        assert [line[2] for line in lines.of("a")] == [3]


async def test_it_begins_in_the_midst_and_anew(rig: MakeRig) -> None:
    async with rig(seconds=0.01) as r:
        stream = r.client.submit(request(1, max_tokens=100))
        await until(lambda: len(r.worker.batches) > 5)
        lines = Lines()
        r.client.watch(lines)
        await until(lambda: len(lines.of("r")) > 3)
        ((number, n_input, asked, carried, may_stop, n_output),) = lines.headers[0]["live"]
        assert (number, n_input, asked, carried, may_stop) == (1, 3, 100, 0, 0) and n_output >= 5
        r.client.watch(lines)
        [each async for each in stream]
        await until(lambda: any(len(line) > 4 for line in lines.of("r")))
        one, other = lines.headers
        assert one["run"] == other["run"] and other["part"] == one["part"] + 1
        numbers = [line[2] for line in lines.of("b")]
        assert numbers == list(range(numbers[0], 101)), "beginning anew loses nothing"


async def test_requests_are_described(rig: MakeRig) -> None:
    async with rig(seconds=0.05) as r:
        [r.client.submit(request(i, max_tokens=50)) for i in (1, 2)]
        await until(lambda: len(r.worker.batches) > 2)
        one, two, three = await asyncio.gather(*(r.client.describe() for _ in range(3)))
        assert one is two is three and r.host.questions == 1, "who asks meanwhile shares the answer"
        first, second = one.requests
        assert (first.id, first.state, first.n_input, first.n_reserved) == (1, LiveState.INCREMENT, 3, 64)
        assert first.n_output >= 1 and first.n_used >= 3 and first.age > 0 and not first.why_waiting
        assert second.id == 2 and one.n_left_out == 0
        r.client.submit(request(3))
        assert [each.id for each in (await r.client.describe()).requests] == [1, 2, 3], "a question follows submits"


async def test_with_the_engine_goes_the_answer(rig: MakeRig) -> None:
    async with rig(seconds=0.01) as r:
        r.host.describe = lambda answer: None  # it hangs
        asking = asyncio.create_task(r.client.describe())
        await asyncio.sleep(0.05)
        r.client.submit(Request(9, [666], SamplingParams(max_tokens=5)))
        with pytest.raises(EngineError, match="the engine is gone"):
            await asking
        with pytest.raises(EngineError, match="the engine is gone"):
            await r.client.describe()
        with pytest.raises(EngineError, match="the engine is gone"):
            r.client.watch(Lines())


async def test_an_endpoint_that_does_not_read_loses_lines_and_begins_anew() -> None:
    sent: list[bytes] = []
    sink = ScheduleSink(sent.append)
    sink.next_part(b"{1}\n")
    line = b'["c",1]' * 1000 + b"\n"
    while sum(map(len, sent)) + len(line) <= MOST_ON_THE_WAY:
        sink.write(line)
    n_kept = len(sent)
    for _ in range(10_000):
        sink.write(line)
    assert len(sent) == n_kept, "memory is bounded"
    for i, lines in enumerate(sent):
        assert sink.sent(len(lines)) == (i == n_kept - 1), "only once all is gone"
    sink.write(line)
    assert len(sent) == n_kept, "what follows means nothing without a header"
    sink.next_part(b"{2}\n")
    sink.write(line)
    assert sent[n_kept:] == [b"{2}\n", line]
    assert not sink.sent(4)


async def test_a_sender_that_was_held_up_asks_for_a_header(rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orcaserve.control_plane.schedule_sink.MOST_ON_THE_WAY", 10)  # one message, whatever its size
    async with rig(seconds=0.001) as r:
        lines = Lines()
        r.client.watch(lines)
        await until(lambda: len(lines.headers) == 1)
        for i in range(400):
            r.client.submit(request(i + 1))
            if i % 20 == 0:
                await asyncio.sleep(0)
        await until(lambda: r.client.n_open == 0)
        r.client.watch(lines)
        await until(lambda: len(lines.headers) > 1 and not lines.headers[-1]["live"])
        for chunk in lines.chunks:
            for line in chunk.splitlines():
                json.loads(line)


async def test_a_header_that_is_larger_than_the_bound_still_comes() -> None:
    sent: list[bytes] = []
    ScheduleSink(sent.append).next_part(b"x" * (MOST_ON_THE_WAY + 1))
    assert len(sent) == 1
