"""The supervisor over engines without a model, which die when told to: what goes on, what fails, when it is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fake_engines import MAX_BS, POISON, FakeProcess, assert_whole, read, request, until

from orcaserve.config import EngineConfig, ModelConfig, ServingConfig
from orcaserve.control_plane.client import EngineClient
from orcaserve.control_plane.token_stream import TokenStream
from orcaserve.core import (
    EngineError,
    FinishReason,
    InvalidRequest,
    ModelError,
    NoRoom,
    Progress,
    Request,
    SamplingParams,
    Terms,
)
from orcaserve.core.errors import CRASHED_TWICE, ENGINE_LOST, SERVER_STOPPING, TOO_LATE
from orcaserve.serving import supervisor as module
from orcaserve.serving.supervisor import Supervisor

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop")]


@asynccontextmanager
async def supervised() -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(ServingConfig(), EngineConfig(ModelConfig(Path("none"), "fake")))
    supervisor.start()
    await supervisor.connect()
    try:
        yield supervisor
    finally:
        await supervisor.close()


async def test_requests_go_on_in_the_next_engine(processes: type[FakeProcess]) -> None:
    async with supervised() as s:
        waiting, restarts = [], []
        s.on_waiting = lambda: waiting.append(s.present)
        s.on_restart = lambda: restarts.append(len(processes.started))
        streams = [s.submit(request(i)) for i in range(5)]
        await anext(streams[2])
        await processes.started[0].kill()
        await until(lambda: not s.present)
        late = s.submit(request(9))
        assert s.n_open == 6
        news = [await read(stream) for stream in (*streams, late)]
        first = news.pop(2)
        assert [p.token for p in first][-1] == 152
        for each in news:
            assert_whole(each)
        assert waiting[:1] == [False] and restarts == [2]
        assert s.n_open == 0
        await until(lambda: s.status.n_reserved == 0)


async def test_the_reason_of_an_end_whose_stream_broke_before_it_was_told(
    processes: type[FakeProcess], caplog: pytest.LogCaptureFixture
) -> None:
    async with supervised() as s:
        processes.started[0].last_words = "worker s0r1 was ended by SIGKILL"
        await processes.started[0].kill()
        await until(lambda: s.present and len(processes.started) == 2)
        assert "the engine has ended (worker s0r1 was ended by SIGKILL, exit code -9)" in caplog.text


async def test_the_status_while_there_is_no_engine(processes: type[FakeProcess]) -> None:
    async with supervised() as s:
        processes.load_error = EngineError("not yet")
        s.submit(request(1))
        await processes.started[0].kill()
        await until(lambda: s.status.n_waiting == 1)
        assert not s.present and s.facts.max_bs == MAX_BS and time.monotonic() - s.last_report < 1


async def test_later_engines_have_as_many_slots_as_the_first(processes: type[FakeProcess]) -> None:
    async with supervised() as s:
        processes.n_slots = 16
        await processes.started[0].kill()
        assert_whole(await read(s.submit(request(1))))
        assert processes.started[1].config.kv.n_slots == s.facts.n_slots == 4096


async def test_who_was_in_two_crashes_is_failed_and_nobody_else(processes: type[FakeProcess]) -> None:
    """The iteration raises: the engine itself says that all its requests are lost, which is not so."""
    async with supervised() as s:
        poison = s.submit(request(1, prompt=POISON))
        others = [s.submit(request(i)) for i in range(2, 8)]
        await until(lambda: len(processes.started) == 2)
        # Those that were in both batches with it are under the same suspicion; later ones were in neither.
        ends = [await read(stream) for stream in (poison, *others)]
        for end in ends[:MAX_BS]:
            assert end[-1] == Progress(end[-1].request_id, None, FinishReason.ERROR, CRASHED_TWICE)
        for end in ends[MAX_BS:]:
            assert_whole(end)
        assert len(processes.started) == 3
        assert_whole(await read(s.submit(request(20))))


async def test_one_crash_and_a_second_much_later_request(processes: type[FakeProcess]) -> None:
    """A request is blamed for the engines that it was in only."""
    async with supervised() as s:
        first = s.submit(request(1))
        await anext(first)
        await processes.started[0].kill()
        await until(lambda: len(processes.started) == 2 and s.present)
        second = s.submit(request(2))
        await read(first)
        await processes.started[1].kill()
        assert_whole(await read(second))


async def test_who_was_cancelled_does_not_come_back(processes: type[FakeProcess]) -> None:
    async with supervised() as s:
        in_engine, away, kept = s.submit(request(1)), None, s.submit(request(3))
        await anext(in_engine)
        await processes.started[0].kill()
        s.cancel(1)
        await until(lambda: not s.present)
        away = s.submit(request(2))
        s.cancel(2)
        s.cancel(2)
        s.cancel(77)
        assert (await read(in_engine))[-1] == Progress(1, None, FinishReason.CANCELLED)
        assert await read(away) == [Progress(2, None, FinishReason.CANCELLED)]
        assert_whole(await read(kept))
        s.cancel(3)


async def test_what_does_not_fit_the_wire_is_refused_and_forgotten(processes: type[FakeProcess]) -> None:
    async with supervised() as s:
        with pytest.raises(InvalidRequest):
            s.submit(Request(1, [2**31], SamplingParams()))
        assert s.n_open == 0


async def test_the_end_after_too_many_short_lives(processes: type[FakeProcess]) -> None:
    async with supervised() as s:
        stream = s.submit(request(1))
        await anext(stream)
        processes.load_error = ModelError("the files are gone")
        await processes.started[0].kill()
        await asyncio.wait_for(s.closed.wait(), 10)
        assert len(processes.started) == 1 + module.MAX_RESTARTS
        assert s.reason == "6 in a row have lived for less than 5 s"
        assert (await read(stream))[-1] == Progress(1, None, FinishReason.ERROR, ENGINE_LOST)
        with pytest.raises(EngineError):
            s.submit(request(2))


async def test_no_process_can_be_made_for_a_while(processes: type[FakeProcess]) -> None:
    async with supervised() as s:
        processes.start_error = NoRoom("no process can be started: no space left on device")
        stream = s.submit(request(1))
        await processes.started[0].kill()
        await asyncio.sleep(0.1)
        processes.start_error = None
        assert_whole(await read(stream))


async def test_lives_that_are_long_enough_do_not_add_up(
    processes: type[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHORT_LIFE", 0.0)
    async with supervised() as s:
        for n in range(module.MAX_RESTARTS + 3):
            await processes.started[-1].kill()
            await until(lambda n=n: len(processes.started) == n + 2 and s.present)
        assert_whole(await read(s.submit(request(1))))


async def test_another_model_in_the_files_is_not_taken(processes: type[FakeProcess]) -> None:
    async with supervised() as s:
        s._config = EngineConfig(ModelConfig(Path("none"), "fake"))  # so that the next one has other slots
        processes.n_slots = 16
        await processes.started[0].kill()
        await asyncio.wait_for(s.closed.wait(), 10)
        assert len(processes.started) == 1 + module.MAX_RESTARTS


async def test_closing_tells_everyone_why(processes: type[FakeProcess]) -> None:
    async with supervised() as s:
        running = s.submit(request(1))
        await anext(running)
        await s.close(SERVER_STOPPING)
        assert (await read(running))[-1].error == SERVER_STOPPING
        assert processes.started[0]._exit().done() and len(processes.started) == 1


async def test_a_watch_begins_anew_with_the_next_engine(processes: type[FakeProcess]) -> None:
    async with supervised() as s:
        headers: list[bytes] = []
        s.watch(lambda lines: headers.append(lines) if lines.startswith(b"{") else None)
        await until(lambda: len(headers) == 1)
        await processes.started[0].kill()
        await until(lambda: not s.present)
        stream = s.submit(request(1))
        await until(lambda: len(headers) == 2)
        assert headers[0] != headers[1]
        assert_whole(await read(stream))
        s.watch(None)
        await processes.started[1].kill()
        await until(lambda: len(processes.started) == 3 and s.present)
        assert_whole(await read(s.submit(request(2))))
        assert len(headers) == 2


async def test_requests_are_described_with_and_without_an_engine(processes: type[FakeProcess]) -> None:
    async with supervised() as s:
        streams = [s.submit(request(i)) for i in range(1, MAX_BS + 2)]
        await anext(streams[0])
        live = (await s.describe()).requests
        assert [each.id for each in live] == [1, 2, 3, 4]
        assert [bool(each.why_waiting) for each in live] == [False, False, False, True]
        processes.load_error = EngineError("not yet")
        await processes.started[0].kill()
        await until(lambda: not s.present)
        live = (await s.describe()).requests
        assert [each.why_waiting for each in live] == [
            "it waits for another engine, in place of the one that was lost"
        ] * 4
        assert live[0].n_output >= 1 and live[0].n_reserved == 0
        processes.load_error = None
        for stream in streams:
            await read(stream)
        assert (await s.describe()).requests == []


async def test_an_engine_that_does_not_answer(processes: type[FakeProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DESCRIBE_SECONDS", 0.05)
    monkeypatch.setattr(module, "MOST_DESCRIBED", 2)
    async with supervised() as s:
        processes.started[0]._host.describe = lambda answer: None
        for i in range(5):
            s.submit(request(i))
        live = await s.describe()
        assert len(live.requests) == 2 and live.n_left_out == 3
        assert live.requests[0].why_waiting == "the engine has not said anything of it for 0.05 s"


def with_terms(id: int, arrival: float, **terms: float) -> Request:
    return Request(id, [0, 1, 2], SamplingParams(max_tokens=150), terms=Terms(**terms), arrival=arrival)  # type: ignore[arg-type]


async def test_deadlines_count_from_the_arrival(processes: type[FakeProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when a further engine gets a request: what has passed is taken off, and what is over is not begun."""
    handed: list[Request] = []
    submit = EngineClient.submit

    def noted(self: EngineClient, request: Request) -> TokenStream:
        handed.append(request)
        return submit(self, request)

    monkeypatch.setattr(EngineClient, "submit", noted)
    async with supervised() as s:
        now = time.monotonic()
        streams = [
            s.submit(with_terms(1, now - 10, timeout=30, first_token=15, between_tokens=1)),
            s.submit(with_terms(2, now - 10, timeout=9)),
        ]
        (terms,) = (request.terms for request in handed)
        assert terms.timeout == pytest.approx(20, abs=2) and terms.first_token == pytest.approx(5, abs=2)
        assert terms.between_tokens == 1
        assert await read(streams[1]) == [Progress(2, None, FinishReason.ERROR, TOO_LATE)]
        await anext(streams[0])
        await processes.started[0].kill()
        await until(lambda: not s.present)
        late = s.submit(with_terms(3, time.monotonic(), first_token=0.001))
        await asyncio.sleep(0.01)
        assert (await read(late))[-1].error == TOO_LATE
        await read(streams[0])
        again = handed[-1]
        assert again.id == 1 and again.output and again.terms.timeout is not None
        assert 0 < again.terms.timeout < 20 and again.terms.first_token is None, "it has its first token"
        assert s.n_open == 0


async def test_an_engine_that_gets_nowhere_is_replaced(
    processes: type[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    dumped: list[int] = []

    async def dump(self: FakeProcess) -> None:
        dumped.append(len(self.started))

    monkeypatch.setattr(FakeProcess, "dump_stacks", dump, raising=False)
    supervisor = Supervisor(ServingConfig(stall_timeout=2), EngineConfig(ModelConfig(Path("none"), "fake")))
    supervisor.start()
    await supervisor.connect()
    try:
        monkeypatch.setattr(processes.started[0]._host, "submit", lambda requests: None)  # they lie about there
        assert_whole(await read(supervisor.submit(request(1))))
        assert dumped == [1] and len(processes.started) == 2
    finally:
        await supervisor.close()
