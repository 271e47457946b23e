"""HostedEndpoint: the endpoint as an application of somebody else's HTTP server. `load_service` is for either kind."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

from orcaserve.checkpoint.pooling import read_pooling
from orcaserve.config import EngineConfig, ServingConfig
from orcaserve.core import ModelError, Pooling
from orcaserve.core.errors import SERVER_STOPPING
from orcaserve.serving.app import App
from orcaserve.serving.http import Receive, Scope, Send
from orcaserve.serving.observing.traces import traces_for
from orcaserve.serving.replicas import Engines, engines_for
from orcaserve.serving.service import Service
from orcaserve.text.tokenizer import Tokenizer


async def load_service(serving: ServingConfig, engine: EngineConfig, engines: Engines) -> Service:
    """The engine loads the model in its process while this one reads the tokenizer. Raises as `engines.connect`."""
    reading = asyncio.create_task(asyncio.to_thread(Tokenizer.from_path, engine.model.path))
    try:
        await engines.connect()
    except BaseException:
        reading.cancel()
        raise
    return Service(
        engines,
        await reading,
        serving.served_model_name or engine.model.name,
        serving,
        pooling=await asyncio.to_thread(pooling_of, serving, engine.model.path),
        adapters=engine.adapters,
    )


def pooling_of(serving: ServingConfig, path: Path) -> Pooling | str:
    """How embeddings of the model are made: as the server was told, or as the model's own files say; or why not."""
    if serving.pooling != "auto":
        return Pooling(serving.pooling)
    try:
        return read_pooling(path)
    except ModelError as error:
        return f"{error}; a server that was started with --pooling goes by that alone"


class HostedEndpoint:
    """An ASGI application (with `lifespan`, which starts and ends the engine) that listens nowhere by itself.

    All of it belongs to one event loop and to that loop's thread: the engine's process ends with the thread.
    """

    def __init__(self, serving: ServingConfig, engine: EngineConfig) -> None:
        self._serving, self._engine = serving, engine
        self._app = App(serving, traces_for(serving.otlp_traces_endpoint, os.environ))
        self.engines = engines_for(serving, engine)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await self._app(scope, receive, send)

    @property
    def why_not_healthy(self) -> str | None:
        """None, or what is wrong for good. An engine that is being replaced is no illness."""
        service = self._app.service
        return None if service is None else service.why_not_healthy()

    @property
    def n_tokens(self) -> int:
        """Slots that unfinished requests have reserved, or wait for."""
        return sum(replica.n_reserved for replica in self.engines.replicas)

    @property
    def n_slots(self) -> int:
        """Of all its engines."""
        service = self._app.service
        return 0 if service is None else service.facts.n_slots * len(self.engines.replicas)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()  # the startup
        try:
            self.engines.start()
            self._app.service = await load_service(self._serving, self._engine, self.engines)
        except Exception as error:
            await self.engines.close(SERVER_STOPPING)
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        gc.freeze()  # what loading has made stays for good: no collection has to look at it again
        self.engines.on_waiting = self._app.keep_streams_alive
        await send({"type": "lifespan.startup.complete"})
        try:
            await receive()  # the shutdown
        finally:
            self._app.drain()
            await self.engines.close(SERVER_STOPPING)
            await self._app.close()
        await send({"type": "lifespan.shutdown.complete"})
