"""Client and server over a real Unix socket, with scheduler and loop behind them and no model."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from orcaserve.control_plane.client import EngineClient
from orcaserve.control_plane.service import EngineServer
from orcaserve.control_plane.token_stream import TokenStream
from orcaserve.core import (
    EngineError,
    EngineFacts,
    FinishReason,
    InvalidRequest,
    IterationReport,
    Progress,
    Request,
    SamplingParams,
)
from orcaserve.core.errors import ENGINE_LOST

pytestmark = pytest.mark.anyio
MakeRig = Callable[..., AbstractAsyncContextManager[Any]]


def request(id: int, n_input: int = 3, max_tokens: int = 5) -> Request:
    return Request(id, list(range(n_input)), SamplingParams(max_tokens=max_tokens))


async def read(stream: TokenStream) -> list[Progress]:
    return [news async for some in stream for news in some]


async def test_a_request_runs_to_its_end(rig: MakeRig) -> None:
    async with rig() as r:
        assert r.client.facts == EngineFacts("fake", 1000, 512, 4096, 64, 1)
        news = await asyncio.wait_for(read(r.client.submit(request(7))), 10)
        assert [p.token for p in news] == [3, 4, 5, 6, 7]
        assert [p.finish_reason for p in news] == [None] * 4 + [FinishReason.LENGTH]
        assert r.client.n_open == 0
        assert r.client.status.iteration == 5
        assert r.client.status.n_reserved == 0


async def test_one_message_an_iteration_for_all_requests(rig: MakeRig) -> None:
    async with rig(seconds=0.005) as r:
        reports: list[IterationReport] = []
        r.client.on_report = reports.append
        streams = [r.client.submit(request(i, max_tokens=10)) for i in range(20)]
        assert all(len(news) == 10 for news in await asyncio.gather(*map(read, streams)))
        assert len(reports) == len(r.worker.batches) == 10
        assert reports == r.sent
        assert all(len(report.progress) == 20 for report in reports)
        assert r.host.submits == [20], "what is submitted in one turn travels as one message"


async def test_what_comes_while_a_message_is_written_goes_with_the_next(rig: MakeRig) -> None:
    async with rig() as r:
        written, write = [], r.client._call.write
        free = asyncio.Event()

        async def slow_write(message: Any) -> None:
            written.append((len(message.submits), len(message.cancels)))
            await free.wait()
            await write(message)

        r.client._call.write = slow_write
        streams = []
        for i in range(10):
            streams.append(r.client.submit(request(i)))
            await asyncio.sleep(0.001)
        r.client.cancel(9)
        free.set()
        assert [(await read(stream))[-1].finish_reason for stream in streams] == [FinishReason.LENGTH] * 9 + [
            FinishReason.CANCELLED
        ]
        assert written == [(1, 0), (9, 1)]


@pytest.mark.parametrize(
    "large",
    [
        {"input_ids": [500] * 100},
        {"params": SamplingParams(max_tokens=1, logit_bias=dict.fromkeys(range(300, 316), 1.0))},
        {"stop_ids": frozenset(range(300, 400))},
    ],
    ids=["prompt", "bias", "stop ids"],
)
async def test_large_requests_are_spread_over_messages(
    rig: MakeRig, monkeypatch: pytest.MonkeyPatch, large: dict[str, Any]
) -> None:
    """Each is some 200 to 300 bytes here: three fit a message of 900, and four never do."""
    monkeypatch.setattr("orcaserve.control_plane.codec.MAX_TURN_BYTES", 900)
    fields = {"input_ids": [1], "params": SamplingParams(max_tokens=1), **large}
    async with rig() as r:
        streams = [r.client.submit(Request(id=i, **fields)) for i in range(10)]
        r.client.cancel(9)
        ends = [(await read(stream))[-1].finish_reason for stream in streams]
        assert ends[:9] == [FinishReason.LENGTH] * 9
        assert ends[9] in (FinishReason.LENGTH, FinishReason.CANCELLED)
        assert r.host.submits == [3, 3, 3, 1]


async def test_cancel_ends_a_stream_and_frees_its_slots(rig: MakeRig) -> None:
    async with rig() as r:
        stream = r.client.submit(request(1, max_tokens=500))
        other = r.client.submit(request(2, max_tokens=100))
        await anext(stream)
        r.client.cancel(1)
        r.client.cancel(1)
        news = await asyncio.wait_for(read(stream), 10)
        assert news[-1] == Progress(1, None, FinishReason.CANCELLED)
        assert len(news) < 100
        assert len(await read(other)) == 100
        assert r.client.status.n_reserved == 0
        r.client.cancel(1)  # it is over: nothing happens, and nothing is sent
        r.client.cancel(77)
        await read(r.client.submit(request(3)))
        assert sum(r.host.cancels) == 2


async def test_a_slow_reader_holds_nobody_up_and_its_news_merge(rig: MakeRig) -> None:
    async with rig() as r:
        slow = r.client.submit(request(1, max_tokens=50))
        fast = r.client.submit(request(2, max_tokens=100))
        assert len(await asyncio.wait_for(read(fast), 10)) == 100
        assert slow.ended
        unread = await anext(slow)
        assert [p.token for p in unread] == list(range(3, 53)), "all of it, in one list"
        with pytest.raises(StopAsyncIteration):
            await anext(slow)


async def test_a_listener_is_told_all_news_as_they_come(rig: MakeRig) -> None:
    async with rig() as r:
        told: list[Progress] = []
        early, late = r.client.submit(request(1)), r.client.submit(request(2))
        early.listen(told.append)
        await read(r.client.submit(request(3, max_tokens=6)))  # ends after them
        news = list(told)
        late.listen(told.append)  # what has come before it is told at once
        assert [p.token for p in news] == [3, 4, 5, 6, 7]
        assert told == [*news, *(Progress(2, p.token, p.finish_reason) for p in news)]
        early.put(Progress(1, 8))
        assert len(told) == 10, "nothing comes after the end"


async def test_a_reader_that_was_cancelled_may_read_on(rig: MakeRig) -> None:
    async with rig(seconds=0.02) as r:
        stream = r.client.submit(request(1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.001)
        assert [p.token for p in await read(stream)] == [3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    "bad",
    [
        Request(1, [1, 1000], SamplingParams()),
        Request(1, [1], SamplingParams(), frozenset({1000})),
        Request(1, [1], SamplingParams(logit_bias={1000: 1.0})),
        Request(1, [1], SamplingParams(max_tokens=512)),
    ],
    ids=["prompt", "stop id", "bias", "context"],
)
async def test_what_the_model_cannot_run_fails_alone(rig: MakeRig, bad: Request) -> None:
    async with rig() as r:
        good = r.client.submit(request(2, max_tokens=20))
        news = await read(r.client.submit(bad))
        assert [(p.token, p.finish_reason) for p in news] == [(None, FinishReason.ERROR)]
        assert news[0].error
        assert len(await read(good)) == 20


async def test_a_submit_that_cannot_be_decoded_fails_alone(rig: MakeRig) -> None:
    async with rig() as r:
        good, bad = r.client.submit(request(2, max_tokens=20)), r.client.submit(request(1))
        r.client._submits[1].sampling.temperature = 3
        news = await read(bad)
        assert news == [Progress(1, None, FinishReason.ERROR, news[0].error)]
        assert len(await read(good)) == 20


async def test_ids_that_do_not_fit_the_wire_are_refused_at_once(rig: MakeRig) -> None:
    async with rig() as r:
        with pytest.raises(InvalidRequest):
            r.client.submit(Request(1, [2**31], SamplingParams()))
        assert r.client.n_open == 0


async def test_an_iteration_that_raises_ends_every_stream(rig: MakeRig) -> None:
    async with rig() as r:
        streams = [r.client.submit(request(i, max_tokens=500)) for i in range(3)]
        await anext(streams[0])
        streams.append(r.client.submit(Request(3, [666], SamplingParams())))
        for stream in streams:
            end = (await asyncio.wait_for(read(stream), 10))[-1]
            assert (end.token, end.finish_reason) == (None, FinishReason.ERROR)
            assert end.error and "secret" not in end.error
        await asyncio.wait_for(r.client.closed.wait(), 10)
        assert "RuntimeError" in r.client.reason


async def test_an_engine_that_vanishes_ends_every_stream(rig: MakeRig) -> None:
    async with rig() as r:
        streams = [r.client.submit(request(i, max_tokens=500)) for i in range(3)]
        await anext(streams[0])
        r.server._server.stop(0)
        for stream in streams:
            assert (await asyncio.wait_for(read(stream), 10))[-1] == Progress(
                stream.request_id, None, FinishReason.ERROR, ENGINE_LOST
            )
        assert r.client.closed.is_set()
        with pytest.raises(EngineError):
            r.client.submit(request(9))
        with pytest.raises(EngineError):
            r.client.cancel(9)


async def test_the_engine_hears_that_the_endpoint_has_gone(rig: MakeRig) -> None:
    async with rig() as r:
        stream = r.client.submit(request(1, max_tokens=500))
        await r.client.close()
        await r.client.close()
        assert (await read(stream))[-1].error == ENGINE_LOST
        assert await asyncio.to_thread(r.stream_ended.wait, 5)


async def test_a_second_endpoint_is_refused(rig: MakeRig, socket: Path) -> None:
    async with rig() as r:
        with pytest.raises(EngineError, match="FAILED_PRECONDITION"):
            await asyncio.wait_for(EngineClient.connect(socket), 5)
        assert len(await read(r.client.submit(request(1)))) == 5


async def test_connect_waits_for_a_socket_that_is_not_there_yet(socket: Path) -> None:
    connecting = asyncio.create_task(EngineClient.connect(socket))
    await asyncio.sleep(0.2)
    server = EngineServer(socket, lambda: None)
    server.start()
    await asyncio.sleep(0.1)
    assert not connecting.done(), "the model is not loaded yet"
    server.fail("no model today")
    with pytest.raises(EngineError, match="no model today"):
        await asyncio.wait_for(connecting, 5)
    server.close()


async def test_an_engine_goes_on_with_a_request_of_another(rig: MakeRig) -> None:
    async with rig() as r:
        carried = Request(1, [0, 1, 2], SamplingParams(max_tokens=5), output=[3, 4])
        news = await asyncio.wait_for(read(r.client.submit(carried)), 10)
        assert [p.token for p in news] == [5, 6, 7] and news[-1].finish_reason is FinishReason.LENGTH
        assert [(list(e.tokens), e.n_output) for e in r.worker.batches[0].entries] == [([0, 1, 2, 3, 4], 2)]
        for output in ([3] * 5, [1000]):
            news = await read(r.client.submit(Request(2, [0], SamplingParams(max_tokens=5), output=output)))
            assert [(p.token, p.finish_reason) for p in news] == [(None, FinishReason.ERROR)]


async def test_an_iteration_may_take_longer_than_silence(rig: MakeRig) -> None:
    async with rig(seconds=2.5, silence=1.2) as r:
        assert len(await asyncio.wait_for(read(r.client.submit(request(1, max_tokens=1))), 10)) == 1
        await asyncio.sleep(2.5)
        assert not r.client.closed.is_set(), "nor is an idle engine taken for hung"


async def test_a_silent_engine_is_given_up(rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orcaserve.control_plane.service.HEARTBEAT_SECONDS", 60.0)
    async with rig(silence=0.4) as r:
        started = asyncio.get_running_loop().time()
        await asyncio.wait_for(r.client.closed.wait(), 5)
        assert 0.3 <= asyncio.get_running_loop().time() - started <= 2
        assert r.client.reason == "it has said nothing for 0.4 s"


async def test_an_endpoint_that_was_stopped_does_not_blame_its_engine(rig: MakeRig) -> None:
    async with rig(silence=1.2) as r:
        await asyncio.sleep(0.1)
        time.sleep(2)  # noqa: ASYNC251  (the whole loop stands still)
        await asyncio.sleep(1)
        assert not r.client.closed.is_set()


async def test_an_engine_that_says_nothing_while_it_loads_is_given_up(
    socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orcaserve.control_plane.service.HEARTBEAT_SECONDS", 0.1)
    server = EngineServer(socket, lambda: None)
    server.start()
    connecting = asyncio.create_task(EngineClient.connect(socket, start_silence=1))
    await asyncio.sleep(1.5)
    assert not connecting.done(), "it says that it lives"
    monkeypatch.setattr("orcaserve.control_plane.service.HEARTBEAT_SECONDS", 60.0)
    with pytest.raises(EngineError, match="said nothing for 1 s"):
        await asyncio.wait_for(connecting, 5)
    server.close()


async def test_connect_can_be_given_up(socket: Path) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(EngineClient.connect(socket), 0.1)


async def test_a_socket_that_cannot_be_made() -> None:
    with pytest.raises(EngineError):
        EngineServer(Path("/nonexistent/engine.sock"), lambda: None).start()


async def test_threads_end_with_the_rig(rig: MakeRig) -> None:
    before = set(threading.enumerate())
    async with rig() as r:
        await read(r.client.submit(request(1)))
        ours = set(threading.enumerate()) - before
    assert {"loop", "fake", "control plane: read"} <= {thread.name for thread in ours}
    for thread in ours:
        if thread.name in ("loop", "fake", "control plane: read"):
            await asyncio.to_thread(thread.join, 5)
            assert not thread.is_alive(), thread.name


async def test_last_words_are_heard_by_an_endpoint_that_is_busy(rig: MakeRig) -> None:
    """The end of the stream may be known before what was said last has been read."""
    async with rig() as r:
        await asyncio.wait_for(read(r.client.submit(request(1))), 10)
        for _ in range(20):
            r.server.report(r.sent[-1])
        r.server.fail("a reason")
        time.sleep(0.5)  # noqa: ASYNC251
        await asyncio.wait_for(r.client.closed.wait(), 10)
        assert r.client.reason == "a reason"
