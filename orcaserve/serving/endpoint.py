"""The endpoint process: binds the port, starts the engine, serves until it is told to stop or engines die in a row."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from orcaserve.config import EngineConfig, ServingConfig
from orcaserve.core.errors import SERVER_STOPPING, ConfigError
from orcaserve.logs import set_up
from orcaserve.process import allow_many_files, name_process
from orcaserve.serving.app import App
from orcaserve.serving.hosted import load_service
from orcaserve.serving.http_protocol import HttpProtocol
from orcaserve.serving.observing.traces import Traces, traces_for
from orcaserve.serving.replicas import Engines, engines_for
from orcaserve.serving.service import Service

FAREWELL_SECONDS = 2.0  # for the last bytes of answers that were cut
BACKLOG = 2048

_log = logging.getLogger("orcaserve")


def run_endpoint(serving: ServingConfig, engine: EngineConfig) -> int:
    """Serve until a signal ends it. Returns the exit code: 0 after a signal, 1 if requests were cut, or if one engine
    after the other died.

    Raises ConfigError if the address cannot be had or traces cannot be sent, ModelError if the model cannot,
    EngineError if the engine does not come up. Call it on the main thread.
    """
    name_process("endpoint")
    allow_many_files()
    set_up(serving.log_level, serving.log_format)
    # What clients send wrong is counted, not logged; uvicorn's own news repeats ours.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    traces = traces_for(serving.otlp_traces_endpoint, os.environ)
    with _bound(serving) as listener:
        engines = engines_for(serving, engine)
        engines.start()
        runner = asyncio.Runner(loop_factory=_loop_factory())
        try:
            with runner:
                return runner.run(_Endpoint(serving, engine, engines, listener, traces).run())
        except KeyboardInterrupt:
            return 0  # before the loop could take signals


class _Endpoint:
    def __init__(
        self,
        serving: ServingConfig,
        engine: EngineConfig,
        engines: Engines,
        listener: socket.socket,
        traces: Traces | None,
    ) -> None:
        self._serving = serving
        self._engine = engine
        self._engines = engines
        self._listener = listener
        self._app = App(serving, traces)
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._at_once = False  # nobody has to learn by /ready that the server ends
        self._server = HttpServer(self._app, serving.write_timeout)

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, self._on_signal, signum)
        _log.info("loading %s", self._engine.model.path)
        http = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        try:
            return await self._serve()
        finally:
            self._server.should_exit = True
            await http
            await self._app.close()
            await self._engines.close(SERVER_STOPPING)

    async def _serve(self) -> int:
        """Load, say so, and wait for the end."""
        stop = asyncio.create_task(self._stop.wait())
        loading = asyncio.create_task(load_service(self._serving, self._engine, self._engines))
        await asyncio.wait({stop, loading}, return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            return 0
        service = await loading
        gc.freeze()  # what loading has made stays for good: no collection has to look at it again
        self._app.service = service
        self._open_files()
        self._announce(service)
        engines = self._engines
        engines.on_waiting = self._app.keep_streams_alive
        gone = asyncio.create_task(engines.closed.wait())
        try:
            await asyncio.wait({stop, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                _log.error("there is no engine any more (%s); the endpoint ends too", engines.reason)
                await self._drain(FAREWELL_SECONDS)
                return 1
            timeout = self._serving.shutdown_timeout
            if self._app.n_live:
                what = "stopping: %d requests have up to %g s to finish; a second signal stops at once"
                _log.info(what, self._app.n_live, timeout)
            grace = 0.0 if self._at_once else min(self._serving.shutdown_grace, timeout)
            await self._wait_for(self._stop_now, seconds=grace)
            await self._drain(timeout - grace)
            n_cut = self._app.n_live
            if n_cut:
                _log.warning("%d requests were cut", n_cut)
            return 1 if n_cut else 0
        finally:
            gone.cancel()
            await engines.close(SERVER_STOPPING)  # open streams end with an error event
            await self._drain(FAREWELL_SECONDS)

    def _open_files(self) -> None:
        """Go on with batches of an earlier server. Raises ConfigError if the folder asked for cannot be used."""
        folder = self._serving.files_dir
        if folder is None or not (self._serving.files_dir_given or folder.exists()):
            return
        try:
            self._app.open_files(folder)
        except ConfigError as error:
            if self._serving.files_dir_given:
                raise
            _log.warning("files and batches are not available now: %s", error)

    async def _drain(self, seconds: float) -> None:
        """Let running requests finish, `seconds` at most; a second signal ends the wait."""
        self._app.drain()
        await self._wait_for(self._app.idle, self._stop_now, seconds=seconds)

    async def _wait_for(self, *events: asyncio.Event, seconds: float) -> None:
        """Until one of them is set, or the time is over."""
        waits = [asyncio.create_task(event.wait()) for event in events]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    def _on_signal(self, signum: signal.Signals) -> None:
        """The first one: leave in order; Ctrl-C is a person's, who waits. The second one: now."""
        self._app.leave()
        self._at_once = self._at_once or signum == signal.SIGINT
        (self._stop_now if self._stop.is_set() else self._stop).set()

    def _announce(self, service: Service) -> None:
        facts = service.facts
        _log.info(
            "%s: context %d tokens; max_bs (--max-num-seqs) %d, n_slots (K/V tokens) %d, n_workers %d",
            service.name, facts.context_length, facts.max_bs, facts.n_slots, facts.n_workers,
        )  # fmt: skip
        if facts.window is not None:
            _log.info(
                "all layers look %d tokens back: older keys and values are released, and texts that may outgrow that "
                "share no prefixes (docs/scheduling.md)",
                facts.window,
            )
        if (n_replicas := len(service.client.replicas)) > 1:
            _log.info("%d replicas (--data-parallel-size), each with so many", n_replicas)
        _log.info("ready on %s  (web page: /, API: /docs, metrics: /metrics)", _url(self._listener))


class HttpServer(uvicorn.Server):
    """uvicorn with our protocol and limits; signals and logging are the endpoint's business."""

    def __init__(self, app: App, write_timeout: float) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(HttpProtocol, write_timeout=write_timeout, turn_away=app.porter.turn_away),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # anybody could write them, and get another's share or blame
                backlog=BACKLOG,
                timeout_graceful_shutdown=1,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def _bound(serving: ServingConfig) -> Iterator[socket.socket]:
    """The listening address, taken before anything slow is done."""
    if serving.uds is not None:
        path = Path(serving.uds)
        listener = socket.socket(socket.AF_UNIX)
        try:
            _remove_stale(path)
            try:
                listener.bind(str(path))
                listener.listen(BACKLOG)
            except OSError as error:
                raise ConfigError("--uds", f"cannot listen on {path}: {error.strerror or error}") from error
            yield listener
        finally:
            listener.close()
            _remove_stale(path)
        return
    try:
        family, _, _, _, address = socket.getaddrinfo(
            serving.host, serving.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError("--host", f"{serving.host} is not an address of this machine") from error
    listener = socket.socket(family)
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(BACKLOG)  # without this, two servers could both bind
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError("--port", f"{serving.host}:{serving.port} is in use; choose another port") from error
            message = f"cannot listen on {serving.host}:{serving.port}: {error.strerror or error}"
            raise ConfigError("--host", message) from error
        yield listener


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens on (any more, or since its server was killed). Nothing else is removed."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError:
            pass


def _url(listener: socket.socket) -> str:
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
