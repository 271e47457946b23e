"""App: the endpoint's routes, and what holds for all of them (keys, limits, errors, write timeouts). Plain ASGI."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from orcaserve.config import ServingConfig
from orcaserve.core.errors import EngineError, InvalidRequest
from orcaserve.serving import openapi
from orcaserve.serving.chat import chat_completions
from orcaserve.serving.completions import completions
from orcaserve.serving.http import Disconnected, Exchange, Receive, Scope, Send
from orcaserve.serving.service import Service, as_invalid, new_id
from orcaserve.serving.tokenize import detokenize, tokenize
from orcaserve.version import __version__

_log = logging.getLogger(__name__)
_Read = Callable[["App", Exchange], Awaitable[None]]
_Act = Callable[[Exchange, Service, Mapping[str, Any]], Awaitable[None]]

OPEN_PATHS = frozenset(("/live", "/ready", "/health"))  # need no key: probes have none
MODELS = "/v1/models/"


class App:
    """The ASGI application. `service` is None while the model loads; `draining` is set when the process is to end."""

    def __init__(self, config: ServingConfig) -> None:
        self._config = config
        self.service: Service | None = None
        self.draining = False
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

    async def drop_stalled(self) -> None:
        """Drop connections whose client has read nothing for the write timeout. Runs until cancelled."""
        while True:
            await asyncio.sleep(min(1.0, self._config.write_timeout / 4))
            before = time.monotonic() - self._config.write_timeout
            for exchange in list(self._live):
                if exchange.sending_since is not None and exchange.sending_since < before:
                    exchange.abort()

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

    async def _act(self, exchange: Exchange, act: _Act) -> None:
        body = await exchange.json_body(self._config.max_body_bytes, self._config.body_timeout)
        service = self.require_service()
        if self.draining:
            raise InvalidRequest(None, "the server is stopping", code="stopping", status=503)
        await act(exchange, service, body)
        service.metrics.ignored_fields += len(exchange.ignored)

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


async def _live(app: App, exchange: Exchange) -> None:
    await exchange.send_json(200, {"status": "live"})


async def _ready(app: App, exchange: Exchange) -> None:
    reason = "the server is stopping" if app.draining else None
    if reason is None:
        reason = "the model is still loading" if app.service is None else app.service.why_not_ready()
    if reason is None:
        await exchange.send_json(200, {"status": "ready"})
    else:
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
    "/health": _ready,
    "/v1/models": _models,
    "/metrics": _metrics,
    "/version": _version,
    "/openapi.json": _openapi,
    "/docs": _docs,
}
ACTIONS: dict[str, _Act] = {
    "/v1/completions": completions,
    "/v1/chat/completions": chat_completions,
    "/tokenize": tokenize,
    "/detokenize": detokenize,
}
