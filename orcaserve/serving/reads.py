"""What is answered without a body: health, the served model, metrics, this API's description; and cancelling."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from orcaserve.core.errors import SERVER_STOPPING, InvalidRequest
from orcaserve.serving.http import Exchange
from orcaserve.serving.service import Service
from orcaserve.version import __version__

if TYPE_CHECKING:
    from orcaserve.serving.app import App


async def live(app: App, exchange: Exchange) -> None:
    await exchange.send_json(200, {"status": "live"})


async def ready(app: App, exchange: Exchange) -> None:
    _refuse_unless_serving(app)
    reason = app.require_service().why_not_ready()
    if reason is not None:
        raise InvalidRequest(None, reason, code="not_ready", status=503)
    await exchange.send_json(200, {"status": "ready"})


async def health(app: App, exchange: Exchange) -> None:
    """As /ready, but that it stays 200 while an engine is replaced: requests are taken, and wait."""
    _refuse_unless_serving(app)
    reason = app.require_service().why_not_healthy()
    if reason is not None:
        raise InvalidRequest(None, reason, code="not_ready", status=503)
    await exchange.send_json(200, app.require_service().health)


def _refuse_unless_serving(app: App) -> None:
    if app.leaving or app.service is None:
        reason = SERVER_STOPPING if app.leaving else "the model is still loading"
        raise InvalidRequest(None, reason, code="not_ready", status=503)


async def models(app: App, exchange: Exchange) -> None:
    await exchange.send_json(200, {"object": "list", "data": _model_objects(app.require_service())})


async def model(app: App, exchange: Exchange) -> None:
    for known in _model_objects(app.require_service()):
        if known["id"] == exchange.params["model"]:
            await exchange.send_json(200, known)
            return
    raise InvalidRequest("model", "the model does not exist", code="model_not_found", status=404)


def _model_objects(service: Service) -> list[dict[str, Any]]:
    """The model, and after it its adapters."""
    model = _model_object(service.name, service.created, service)
    adapters = [
        _model_object(each.source.name, each.created, service) | {"root": str(each.source.path), "parent": service.name}
        for each in service.adapters
    ]
    return [model, *adapters]


def _model_object(name: str, created: int, service: Service) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "orcaserve",
        "root": name,
        "parent": None,
        "max_model_len": service.facts.longest_request,
    }


async def metrics(app: App, exchange: Exchange) -> None:
    """Written on a thread: that takes some milliseconds, in which no stream would be."""
    text = await asyncio.to_thread(app.require_service().metrics.snapshot().render)
    await exchange.send_bytes(200, text, CONTENT_TYPE_PLAIN_0_0_4.encode())


async def version(app: App, exchange: Exchange) -> None:
    await exchange.send_json(200, {"version": __version__})


async def openapi(app: App, exchange: Exchange) -> None:
    from orcaserve.serving.openapi import document  # which describes every route, this one too

    await exchange.send_json(200, document())


async def docs(app: App, exchange: Exchange) -> None:
    from orcaserve.serving.reference import page

    await exchange.send_bytes(200, page().encode(), b"text/html; charset=utf-8")


async def cancel(app: App, exchange: Exchange) -> None:
    """End a request that is being answered; its client gets what there is, with the finish reason `abort`."""
    name = exchange.params["id"]
    if not app.cancel(name, exchange):
        message = "no request of this id is being answered"
        raise InvalidRequest("id", message, code="request_not_found", status=404)
    await exchange.send_json(200, {"id": name, "object": "request", "cancelled": True})
