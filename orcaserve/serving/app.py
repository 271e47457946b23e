"""App: the endpoint's routes, and what holds for all of them (keys, limits, errors, threads). Plain ASGI."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from orcaserve.config import ServingConfig
from orcaserve.core.errors import SERVER_STOPPING, EngineError, InvalidRequest
from orcaserve.serving import openapi
from orcaserve.serving.chat import chat_completions
from orcaserve.serving.completions import completions
from orcaserve.serving.http import Answer, Disconnected, Exchange, Receive, Scope, Send
from orcaserve.serving.json_body import parse_object
from orcaserve.serving.service import Service, as_invalid, new_id
from orcaserve.serving.threads import Threads
from orcaserve.serving.tokenize import detokenize, tokenize
from orcaserve.version import __version__

_log = logging.getLogger(__name__)
_Read = Callable[["App", Exchange], Awaitable[None]]
Act = Callable[[Exchange, Service, Mapping[str, Any]], Answer]
"""Makes of a request's body the answer that is still to be run. All that takes long for a large body is done in it: it
may be called on a thread, and awaits nothing. Raises InvalidRequest."""

SMALL = 4096  # bytes from which a body leaves the event loop
# A template is a program, and its deadline works by tracing its thread: both belong off the event loop.
RENDERED = frozenset(("/v1/chat/completions", "/tokenize"))
OPEN_PATHS = frozenset(("/live", "/ready", "/health", "/docs", "/openapi.json"))  # probes and browsers have no key
MODELS = "/v1/models/"
WAITING = b": waiting for the engine\n\n"  # a comment, which clients of event streams pass over


class App:
    """The ASGI application. `service` is None while the model loads; `draining` is set when the process is to end."""

    def __init__(self, config: ServingConfig) -> None:
        self._config = config
        self.service: Service | None = None
        self.draining = False
        self._threads = Threads()
        self._live: set[Exchange] = set()
        self.idle = asyncio.Event()  # no request is being answered now
        self.idle.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        prefix = {"/v1/completions": "cmpl", "/v1/chat/completions": "chatcmpl"}.get(scope["path"], "req")
        exchange = Exchange(scope, receive, send, new_id(prefix))
        self._live.add(exchange)
        self.idle.clear()
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
            if exchange.started:
                exchange.abort()
            else:
                await self._refuse(exchange, InvalidRequest(None, "an internal error", "internal_error", 500))
        finally:
            self._live.discard(exchange)
            if not self._live:
                self.idle.set()

    @property
    def n_live(self) -> int:
        """Requests that are being answered."""
        return len(self._live)

    def drain(self) -> None:
        """Take no new work; what has arrived in full goes on. Idempotent."""
        self.draining = True
        for exchange in self._live:
            exchange.stop_reading()

    def keep_streams_alive(self) -> None:
        """There is no news for event streams now: say so, lest somebody on the way takes a connection for dead."""
        for exchange in self._live:
            if exchange.may_write:
                exchange.write_events(WAITING)

    async def _answer(self, exchange: Exchange) -> None:
        path, method = exchange.path, exchange.method
        if path not in OPEN_PATHS:
            self._check_key(exchange)
        act, read = ACTIONS.get(path), READS.get(path)
        if path.startswith(MODELS) and len(path) > len(MODELS):
            read = _model
        if act is None and read is None:
            raise InvalidRequest(None, "there is no such path: see /docs", code="not_found", status=404)
        allowed = "POST" if act is not None else "GET, HEAD"
        if method not in allowed.split(", "):
            message = f"this path takes {allowed} only"
            error = InvalidRequest(None, message, code="method_not_allowed", status=405)
            await exchange.send_error(error, [(b"allow", allowed.encode())])
        elif act is not None:
            await self._act(exchange, act)
        elif read is not None:
            await read(self, exchange)

    async def _act(self, exchange: Exchange, act: Act) -> None:
        try:
            raw = await exchange.read_body(self._config.max_body_bytes, self._config.body_timeout)
        except InvalidRequest as error:
            if self.draining and error.status == 408:
                raise InvalidRequest(None, SERVER_STOPPING, code="stopping", status=503) from error
            raise
        service = self.require_service()
        if self.draining:
            raise InvalidRequest(None, SERVER_STOPPING, code="stopping", status=503)

        async def work() -> None:
            in_place = len(raw) < SMALL and exchange.path not in RENDERED
            prepare = partial(_prepare, act, exchange, service, raw)
            answer = prepare() if in_place else await self._threads.run(prepare, len(raw))
            service.metrics.ignored_fields += len(exchange.ignored)
            await answer()

        await exchange.while_connected(work())

    def close(self) -> None:
        self._threads.close()
        if self.service is not None:
            self.service.close()

    def require_service(self) -> Service:
        if self.service is None:
            raise InvalidRequest(None, "the model is still loading", code="loading", status=503)
        return self.service

    async def _refuse(self, exchange: Exchange, error: InvalidRequest) -> None:
        if self.service is not None:
            self.service.metrics.refused[error.code] += 1
        headers = {401: [(b"www-authenticate", b"Bearer")], 503: [(b"retry-after", b"1")]}.get(error.status, [])
        await exchange.send_error(error, headers)

    def _check_key(self, exchange: Exchange) -> None:
        if self._config.api_key is None:
            return
        scheme, _, key = (exchange.header(b"authorization") or "").partition(" ")
        good = hmac.compare_digest(key.strip().encode("latin-1"), self._config.api_key.encode())
        if scheme.lower() != "bearer" or not good:
            message = "send the API key in the header Authorization: Bearer"
            raise InvalidRequest(None, message, code="invalid_api_key", status=401)


def _prepare(act: Act, exchange: Exchange, service: Service, raw: bytes) -> Answer:
    return act(exchange, service, parse_object(raw))


async def _live(app: App, exchange: Exchange) -> None:
    await exchange.send_json(200, {"status": "live"})


async def _ready(app: App, exchange: Exchange) -> None:
    _refuse_unless_serving(app)
    reason = app.require_service().why_not_ready()
    if reason is not None:
        raise InvalidRequest(None, reason, code="not_ready", status=503)
    await exchange.send_json(200, {"status": "ready"})


async def _health(app: App, exchange: Exchange) -> None:
    """As /ready, but that it stays 200 while an engine is replaced: requests are taken, and wait."""
    _refuse_unless_serving(app)
    reason = app.require_service().why_not_healthy()
    if reason is not None:
        raise InvalidRequest(None, reason, code="not_ready", status=503)
    await exchange.send_json(200, app.require_service().health)


def _refuse_unless_serving(app: App) -> None:
    if app.draining or app.service is None:
        reason = SERVER_STOPPING if app.draining else "the model is still loading"
        raise InvalidRequest(None, reason, code="not_ready", status=503)


async def _models(app: App, exchange: Exchange) -> None:
    await exchange.send_json(200, {"object": "list", "data": [_model_object(app.require_service())]})


async def _model(app: App, exchange: Exchange) -> None:
    service = app.require_service()
    if exchange.path.removeprefix(MODELS) != service.name:
        raise InvalidRequest("model", "the model does not exist", code="model_not_found", status=404)
    await exchange.send_json(200, _model_object(service))


def _model_object(service: Service) -> dict[str, Any]:
    return {
        "id": service.name,
        "object": "model",
        "created": service.created,
        "owned_by": "orcaserve",
        "root": service.name,
        "parent": None,
        "max_model_len": service.facts.longest_request,
    }


async def _metrics(app: App, exchange: Exchange) -> None:
    text, content_type = app.require_service().metrics.render(exchange.header(b"accept") or "")
    await exchange.send_bytes(200, text, content_type.encode())


async def _version(app: App, exchange: Exchange) -> None:
    await exchange.send_json(200, {"version": __version__})


async def _openapi(app: App, exchange: Exchange) -> None:
    await exchange.send_json(200, openapi.document())


async def _docs(app: App, exchange: Exchange) -> None:
    await exchange.send_bytes(200, openapi.page().encode(), b"text/html; charset=utf-8")


READS: dict[str, _Read] = {
    "/live": _live,
    "/ready": _ready,
    "/health": _health,
    "/v1/models": _models,
    "/metrics": _metrics,
    "/version": _version,
    "/openapi.json": _openapi,
    "/docs": _docs,
}
ACTIONS: dict[str, Act] = {
    "/v1/completions": completions,
    "/v1/chat/completions": chat_completions,
    "/tokenize": tokenize,
    "/detokenize": detokenize,
}
