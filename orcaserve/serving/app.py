"""App: what holds for all routes of the endpoint (keys, limits, errors, threads). Plain ASGI."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from orcaserve.config import ServingConfig
from orcaserve.core.errors import SERVER_STOPPING, ConfigError, EngineError, InvalidRequest
from orcaserve.logs import about
from orcaserve.serving.batches.queue import BatchQueue
from orcaserve.serving.batches.runner import lines_at_once
from orcaserve.serving.door import Overloaded
from orcaserve.serving.files.store import FileStore
from orcaserve.serving.http import Answer, Disconnected, Exchange, Receive, Scope, Send, new_id, openai_form, plain_form
from orcaserve.serving.inside import ask, is_inside
from orcaserve.serving.keep_alive import keep_alive
from orcaserve.serving.keyring import Keyring
from orcaserve.serving.observing.access_log import AccessLog
from orcaserve.serving.observing.traces import Traces
from orcaserve.serving.porter import PREFIXES, SMALL, Porter
from orcaserve.serving.route import OTHER_PROTOCOLS, Act, Read
from orcaserve.serving.routes import ROUTER, SERVER
from orcaserve.serving.service import Service, as_invalid
from orcaserve.serving.terms import caller_of
from orcaserve.serving.threads import Threads

_log = logging.getLogger(__name__)

IN_PLACE = 4096  # bytes from which a body leaves the event loop
WAITING = b": waiting for the engine\n\n"  # a comment, which clients of event streams pass over


class App:
    """The ASGI application. `service` is None while the model loads.

    leaving: the process is to end: not ready any more, while new requests are still taken. draining: nor are they.

    files, batches: None until somebody needs them, and where no folder is given for them. n_uploads: under way.
    traces: who takes what became of requests, if anybody. porter: who turns requests away, for servers that can ask
    before a request is begun.
    """

    def __init__(self, config: ServingConfig, traces: Traces | None = None) -> None:
        self.config = config
        self.access_log = AccessLog(config.log_requests)
        self.traces = traces
        self.service: Service | None = None
        self.files: FileStore | None = None
        self.batches: BatchQueue | None = None
        self.leaving = False
        self.draining = False
        self.n_uploads = 0
        self._threads = Threads()
        self.keys = Keyring(config.api_keys)
        self.porter = Porter(self)
        self._live: set[Exchange] = set()
        self._aside: set[Exchange] = set()  # of them, those that are not waited for
        self._keeping_alive: asyncio.Task[None] | None = None
        self.idle = asyncio.Event()  # no request is being answered now
        self.idle.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        strict = self.config.strict
        exchange = Exchange(scope, receive, send, new_id(PREFIXES.get(scope["path"], "req")), strict)
        exchange.errors = plain_form if exchange.path.startswith(OTHER_PROTOCOLS) else openai_form
        exchange.count_ignored, exchange.count_failure = self._count_ignored, self._count_failure
        self._live.add(exchange)
        self._note_idle()
        if self._keeping_alive is None and self.config.sse_keep_alive:
            streams = lambda: list(self._live)  # noqa: E731
            self._keeping_alive = asyncio.create_task(keep_alive(streams, self.config.sse_keep_alive))
        try:
            with about(exchange.id, exchange.client_id):
                await self._serve(exchange)
        finally:
            self._live.discard(exchange)
            self._note_idle()
            self._tell(exchange)

    async def _serve(self, exchange: Exchange) -> None:
        """Answer, whatever happens."""
        try:
            await self._answer(exchange)
        except InvalidRequest as error:
            await self._refuse(exchange, error)
        except EngineError as error:
            await self._refuse(exchange, as_invalid(error, admitted=False))
        except Disconnected:
            pass
        except Exception:
            _log.exception("request %s failed", exchange.id)
            exchange.account.code = "internal_error"
            if exchange.started:
                self._count_failure("internal_error")
                exchange.abort()
            else:
                await self._refuse(exchange, InvalidRequest(None, "an internal error", "internal_error", 500))

    def _tell(self, exchange: Exchange) -> None:
        """A request is over."""
        ended = time.monotonic()
        self.access_log.write(exchange, ended)
        if self.traces is not None:
            self.traces.take(exchange, None if self.service is None else self.service.name, ended)

    @property
    def n_live(self) -> int:
        """Requests that are being answered, and that an end has to wait for."""
        return len(self._live) - len(self._aside)

    @contextlib.contextmanager
    def not_waited_for(self, exchange: Exchange) -> Iterator[None]:
        """Meanwhile it holds nobody up: its stream has no end of its own, and ends when the server begins to stop."""
        self._aside.add(exchange)
        self._note_idle()
        try:
            yield
        finally:
            self._aside.discard(exchange)
            self._note_idle()

    def _note_idle(self) -> None:
        if self.n_live:
            self.idle.clear()
        else:
            self.idle.set()

    def leave(self) -> None:
        """Say that requests should go elsewhere, and give up lines of batches. Idempotent."""
        self.leaving = True
        if self.batches is not None:
            self.batches.stop()

    def drain(self) -> None:
        """Take no new work; what has arrived in full goes on. Idempotent."""
        self.leave()
        self.draining = True
        for exchange in self._live:
            exchange.stop_reading()
        for exchange in self._aside:
            if exchange.started and not exchange.may_write:
                exchange.abort()  # it does not read
        for schedule in self.service.schedules if self.service is not None else ():
            schedule.end()

    def keep_streams_alive(self) -> None:
        """There is no news for event streams now: say so, lest somebody on the way takes a connection for dead."""
        for exchange in self._live:
            if exchange.may_write:
                exchange.write_events(WAITING)

    def cancel(self, name: str, asker: Exchange) -> bool:
        """End the other requests of this id, or to which their clients gave this name; False if there are none."""
        named = [other for other in self._live if name in (other.id, other.client_id) and other is not asker]
        for exchange in named:
            exchange.cancellation.request()
        return bool(named)

    async def read_body(self, exchange: Exchange, any_type: bool = False) -> bytes:
        """Raises InvalidRequest, or Disconnected."""
        try:
            return await exchange.read_body(self.config.max_body_bytes, self.config.body_timeout, any_type)
        except InvalidRequest as error:
            if self.draining and error.status == 408:
                raise InvalidRequest(None, SERVER_STOPPING, code="stopping", status=503) from error
            raise

    async def act(
        self, exchange: Exchange, act: Act, read: Read, any_type: bool, on_thread: bool, queues: bool
    ) -> None:
        """Read the body, do what is asked, and answer. on_thread: it takes long for a small body too. queues: only if
        there is room for it with the engines.
        """
        if queues and not self.draining and exchange.announces_more_than(SMALL):
            self._turn_away(exchange, any_type)
        raw = await self.read_body(exchange, any_type)
        service = self.require_service()
        if self.draining:
            raise InvalidRequest(None, SERVER_STOPPING, code="stopping", status=503)

        async def work() -> None:
            prepare = partial(_prepare, act, read, exchange, service, raw)
            in_place = len(raw) < IN_PLACE and not on_thread
            with self._knock(exchange, service) if queues else nullcontext():
                answer = prepare() if in_place else await self._threads.run(prepare, len(raw))
            await answer()

        await exchange.while_connected(work())

    def _turn_away(self, exchange: Exchange, any_type: bool) -> None:
        """Raises Overloaded if the door is full, or InvalidRequest for what the header says of the body.

        A body that was not read costs a client its connection, so small ones are.
        """
        exchange.check_head(self.config.max_body_bytes, any_type)
        if self.service is not None and not is_inside(exchange.scope):
            refusal = self.service.door.turn_away(caller_of(exchange))
            if refusal is not None:
                raise refusal

    def _knock(self, exchange: Exchange, service: Service) -> AbstractContextManager[None]:
        """Lines of batches have a queue of their own."""
        return nullcontext() if is_inside(exchange.scope) else service.door.knock(caller_of(exchange))

    def require_files(self) -> FileStore:
        """Raises InvalidRequest where files are not kept, or cannot be now."""
        self.require_service()
        if self.files is None:
            if self.config.files_dir is None:
                message = "this server keeps no files: it was started without a folder for them"
                raise InvalidRequest(None, message, code="files_disabled", status=404)
            if self.leaving:
                raise InvalidRequest(None, SERVER_STOPPING, code="stopping", status=503)
            try:
                self.open_files(self.config.files_dir)
            except ConfigError as error:
                message = "the folder for files cannot be used now, for example by two servers at once: see the log"
                _log.warning("%s", error)
                raise InvalidRequest(None, message, code="files_unavailable", status=503) from error
        assert self.files is not None
        return self.files

    def require_batches(self) -> BatchQueue:
        """Raises as require_files."""
        self.require_files()
        assert self.batches is not None
        return self.batches

    def open_files(self, folder: Path) -> None:
        """Begin to keep files, and go on with the batches there. Raises ConfigError."""
        service = self.require_service()
        facts, n_replicas = service.facts, len(service.client.replicas)
        self.files = FileStore(folder, self.config.max_files_bytes)
        n_at_once = lines_at_once(facts, n_replicas, beside_others=True)
        self.batches = BatchQueue(self.files, partial(ask, self), n_at_once)
        self.batches.start()

    async def close(self) -> None:
        if self._keeping_alive is not None:
            self._keeping_alive.cancel()
        if self.batches is not None:
            await self.batches.close()
        if self.files is not None:
            self.files.close()
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)
        self._threads.close()
        if self.service is not None:
            self.service.close()

    def require_service(self) -> Service:
        if self.service is None:
            raise InvalidRequest(None, "the model is still loading", code="loading", status=503)
        return self.service

    async def _answer(self, exchange: Exchange) -> None:
        found = ROUTER.find(exchange.path, exchange.raw_path)
        route = None if found is None else found.of(exchange.method)
        if route is None or not route.open:
            self._check_key(exchange)
        if found is None:
            raise InvalidRequest(None, "there is no such path: see /docs", code="not_found", status=404)
        allow = [(b"allow", found.allowed.encode())]
        if exchange.method == "OPTIONS":
            await exchange.send_bytes(200, b"", b"text/plain", allow)
        elif route is None:
            message = f"this path takes {found.allowed} only"
            error = InvalidRequest(None, message, code="method_not_allowed", status=405)
            await exchange.send_error(error, allow)
        else:
            exchange.params = found.params
            exchange.account.route, exchange.account.quiet = route.path, route.operation.tag == SERVER
            await route.handle(self, exchange)

    def _count_ignored(self, n: int) -> None:
        if self.service is not None:
            self.service.metrics.ignored_fields += n

    def _count_failure(self, code: str) -> None:
        if self.service is not None:
            self.service.metrics.refused[code] += 1

    async def _refuse(self, exchange: Exchange, error: InvalidRequest) -> None:
        self._count_failure(error.code)
        headers = {401: [(b"www-authenticate", b"Bearer")], 503: [(b"retry-after", b"1")]}.get(error.status, [])
        if isinstance(error, Overloaded):
            headers = [(b"retry-after", b"%d" % error.retry_after)]
        await exchange.send_error(error, headers)

    def _check_key(self, exchange: Exchange) -> None:
        if not self.keys or is_inside(exchange.scope):
            return
        exchange.key = self.keys.find(exchange.header(b"authorization"))
        if exchange.key is None:
            message = "send the API key in the header Authorization: Bearer"
            raise InvalidRequest(None, message, code="invalid_api_key", status=401)


def _prepare(act: Act, read: Read, exchange: Exchange, service: Service, raw: bytes) -> Answer:
    return act(exchange, service, read(exchange, raw))
