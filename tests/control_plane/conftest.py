"""An engine without a model behind a real Unix socket, and the client that is attached to it."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orcaserve.control_plane.client import EngineClient
from orcaserve.control_plane.service import EngineServer
from orcaserve.core import Batch, EngineFacts, IterationReport, IterationResult, LiveRequests, Request, Sink
from orcaserve.engine.host import EngineHost
from orcaserve.engine.local import LocalEngine
from orcaserve.worker.executor import DeviceExecutor

FACTS = EngineFacts("fake", vocab_size=1000, context_length=512, n_slots=4096, max_bs=64, n_workers=1)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """All tests share one event loop: gRPC may bring the end of a call that was given up to a loop that is closed."""
    yield


@dataclass
class FakeWorker:
    """A request's token is the number of its tokens so far. Token 666 in a prompt makes the iteration raise."""

    seconds: float = 0.001
    batches: list[Batch] = field(default_factory=list)

    def run(self, batch: Batch) -> IterationResult:
        self.batches.append(batch)
        time.sleep(self.seconds)
        if any(666 in entry.tokens for entry in batch.entries):
            raise RuntimeError("a secret of the log")
        return IterationResult(batch.iteration, [entry.position + len(entry.tokens) for entry in batch.entries])


@dataclass
class Counted:
    """Stands between server and host and counts messages each way."""

    host: EngineHost
    submits: list[int] = field(default_factory=list)  # requests in each message
    cancels: list[int] = field(default_factory=list)
    watches: list[bool] = field(default_factory=list)
    questions: int = 0

    def submit(self, requests: Sequence[Request]) -> None:
        self.submits.append(len(requests))
        self.host.submit(requests)

    def cancel(self, request_ids: Sequence[int]) -> None:
        self.cancels.append(len(request_ids))
        self.host.cancel(request_ids)

    def refuse(self, request_id: int, why: str) -> None:
        self.host.refuse(request_id, why)

    def watch(self, sink: Sink | None) -> None:
        self.watches.append(sink is not None)
        self.host.watch(sink)

    def describe(self, answer: Callable[[LiveRequests], None]) -> None:
        self.questions += 1
        self.host.describe(answer)


@dataclass
class Rig:
    client: EngineClient
    server: EngineServer
    worker: FakeWorker
    host: Counted
    stream_ended: threading.Event
    sent: list[IterationReport]


MakeRig = Callable[..., AbstractAsyncContextManager[Rig]]


@pytest.fixture
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="orcaserve-test-") as directory:
        yield Path(directory) / "engine.sock"


@pytest.fixture
def rig(socket: Path) -> MakeRig:
    @asynccontextmanager
    async def make(seconds: float = 0.001, silence: float | None = None) -> AsyncIterator[Rig]:
        worker, ended, sent = FakeWorker(seconds), threading.Event(), []
        server = EngineServer(socket, ended.set)
        server.start()

        def report(news: IterationReport) -> None:
            sent.append(news)
            server.report(news)

        engine = LocalEngine(worker, DeviceExecutor("fake"))
        host = Counted(EngineHost(engine, FACTS, 16, report, server.fail))
        server.open(FACTS, host)
        client = await EngineClient.connect(socket, silence)
        try:
            yield Rig(client, server, worker, host, ended, sent)
        finally:
            await client.close()
            server.close()
            host.host.close()

    return make
