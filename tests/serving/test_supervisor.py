"""The supervisor over engines without a model, which die when told to: what goes on, what fails, when it is over."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from orcaserve.config import EngineConfig, ModelConfig, ServingConfig
from orcaserve.control_plane.client import EngineClient
from orcaserve.control_plane.service import EngineServer
from orcaserve.control_plane.token_stream import TokenStream
from orcaserve.core import (
    Batch,
    EngineError,
    EngineFacts,
    FinishReason,
    InvalidRequest,
    IterationResult,
    ModelError,
    Progress,
    Request,
    SamplingParams,
)
from orcaserve.core.errors import CRASHED_TWICE, ENGINE_LOST, SERVER_STOPPING
from orcaserve.engine.host import EngineHost
from orcaserve.engine.local import LocalEngine
from orcaserve.serving import supervisor as module
from orcaserve.serving.supervisor import Supervisor
from orcaserve.worker.executor import DeviceExecutor

pytestmark = pytest.mark.anyio
MAX_BS = 3
POISON = 666


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """All tests share one event loop: gRPC may bring the end of a call that was given up to a loop that is closed."""
    yield


class CountingWorker:
    """A request's token is the number of its tokens so far. POISON in a prompt makes the iteration raise."""

    def run(self, batch: Batch) -> IterationResult:
        time.sleep(0.002)
        if any(POISON in entry.tokens for entry in batch.entries):
            raise RuntimeError("poison")
        return IterationResult(batch.iteration, [entry.position + len(entry.tokens) for entry in batch.entries])


class FakeProcess:
    """Stands for EngineProcess: the engine runs on threads of this process.

    started: all there were. load_error: raised in place of the next engines. n_slots: of the next engines.
    """

    started: ClassVar[list[FakeProcess]]
    load_error: Exception | None
    start_error: Exception | None
    n_slots: int

    def __init__(self, config: EngineConfig, log_level: str) -> None:
        self.config = config
        self._killed = False
        self._code: asyncio.Future[int] | None = None
        self._directory = tempfile.TemporaryDirectory(prefix="orcaserve-test-")
        self._server: EngineServer | None = None

    def start(self) -> None:
        if self.start_error is not None:
            self._directory.cleanup()
            raise self.start_error
        self.started.append(self)

    async def connect(
        self, within: float, silence: float | None = None, start_silence: float | None = None
    ) -> EngineClient:
        if self.load_error is not None:
            raise self.load_error
        socket = Path(self._directory.name) / "engine.sock"
        self._server = EngineServer(socket, lambda: None)
        self._server.start()
        facts = EngineFacts("fake", 1000, 512, self.config.kv.n_slots or self.n_slots, MAX_BS, 1)
        engine = LocalEngine(CountingWorker(), DeviceExecutor("fake"))
        self._host = EngineHost(engine, facts, 16, self._server.report, self._server.fail)
        self._server.open(facts, self._host)
        return await EngineClient.connect(socket, silence)

    def _exit(self) -> asyncio.Future[int]:
        if self._code is None:
            self._code = asyncio.get_running_loop().create_future()
        return self._code

    async def wait(self) -> int:
        return await asyncio.shield(self._exit())

    async def kill(self) -> int:
        if not self._killed:
            self._killed = True
            if self._server is not None:
                self._server._server.stop(0)
                await asyncio.to_thread(self._host.close)
            self._directory.cleanup()
            self._exit().set_result(-9)
        return await self.wait()

    async def stop(self) -> int:
        return await self.kill()


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> type[FakeProcess]:
    class Processes(FakeProcess):
        started: ClassVar[list[FakeProcess]] = []
        load_error = None
        start_error = None
        n_slots = 4096

    monkeypatch.setattr(module, "EngineProcess", Processes)
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.02)
    return Processes


@asynccontextmanager
async def supervised() -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(ServingConfig(), EngineConfig(ModelConfig(Path("none"), "fake")))
    supervisor.start()
    await supervisor.connect()
    try:
        yield supervisor
    finally:
        await supervisor.close()


def request(id: int, max_tokens: int = 150, prompt: int = 0) -> Request:
    return Request(id, [prompt, 1, 2], SamplingParams(max_tokens=max_tokens))


async def read(stream: TokenStream) -> list[Progress]:
    async with asyncio.timeout(20):
        return [news async for some in stream for news in some]


def assert_whole(news: list[Progress], max_tokens: int = 150) -> None:
    assert [p.token for p in news] == list(range(3, 3 + max_tokens)), "no token is repeated or missing"
    assert news[-1].finish_reason is FinishReason.LENGTH


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


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
        processes.start_error = OSError("no space left on device")
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
