"""Engines without a model, which die when told to, and how to talk to them."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from orcaserve.config import EngineConfig
from orcaserve.control_plane.client import EngineClient
from orcaserve.control_plane.service import EngineServer
from orcaserve.control_plane.token_stream import TokenStream
from orcaserve.core import Batch, EngineFacts, FinishReason, IterationResult, Progress, Request, SamplingParams
from orcaserve.engine.host import EngineHost
from orcaserve.engine.local import LocalEngine
from orcaserve.worker.executor import DeviceExecutor

MAX_BS = 3
POISON = 666


class CountingWorker:
    """A request's token is the number of its tokens so far. POISON in a prompt makes the iteration raise."""

    def run(self, batch: Batch) -> IterationResult:
        time.sleep(0.002)
        if any(POISON in entry.tokens for entry in batch.entries):
            raise RuntimeError("poison")
        return IterationResult(batch.iteration, [entry.position + len(entry.tokens) for entry in batch.entries])

    def prepare(self) -> None: ...


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
        self.last_words: str | None = None
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
                self._host._report = lambda report: None  # one that was killed says nothing more
                self._server._server.stop(0)
                await asyncio.to_thread(self._host.close)
            self._directory.cleanup()
            self._exit().set_result(-9)
        return await self.wait()

    async def stop(self) -> int:
        return await self.kill()


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
