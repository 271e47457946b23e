"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.fields import Field, check_fields
from orcaserve.serving.handlers import acting
from orcaserve.serving.http import Answer, Exchange
from orcaserve.serving.route import Operation, Route
from orcaserve.serving.service import Service

NAME: Mapping[str, Field] = {
    "lora_name": Field({"type": "string", "maxLength": 256}, "What requests call the adapter in `model`."),
}
LOAD: Mapping[str, Field] = {
    **NAME,
    "lora_path": Field({"type": "string"}, "A folder of the server's machines, as PEFT saves adapters."),
}
TAG = "Adapters"
FLAG = "Only with `--enable-runtime-lora-updating` (docs/lora.md)."


def load(exchange: Exchange, service: Service, body: Mapping[str, Any]) -> Answer:
    exchange.name_ignored(check_fields(body, LOAD))
    name, path = _text(body, "lora_name"), _text(body, "lora_path")

    async def answer() -> None:
        await service.adapters.load(name, path)
        await exchange.send_bytes(200, b"Success: the adapter is loaded.", b"text/plain")

    return answer


def unload(exchange: Exchange, service: Service, body: Mapping[str, Any]) -> Answer:
    exchange.name_ignored(check_fields(body, NAME))
    name = _text(body, "lora_name")

    async def answer() -> None:
        service.adapters.unload(name)
        await exchange.send_bytes(200, b"Success: the adapter is unloaded.", b"text/plain")

    return answer


def _text(body: Mapping[str, Any], field: str) -> str:
    value = body.get(field)
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidRequest(field, f"{field} must be a text of one character or more", code="invalid_type")
    return value


ROUTES = [
    Route(
        "POST",
        "/v1/load_lora_adapter",
        acting(load),
        Operation(
            "Load an adapter, which requests may name afterwards",
            {"type": "string"},
            TAG,
            f"Other requests go on meanwhile. {FLAG}",
            fields=LOAD,
            required=("lora_name", "lora_path"),
            content="text/plain",
            errors=(403, 404),
        ),
    ),
    Route(
        "POST",
        "/v1/unload_lora_adapter",
        acting(unload),
        Operation(
            "Unload an adapter",
            {"type": "string"},
            TAG,
            "Its name is free at once; requests that have it go on to their ends, and its memory is free after the "
            f"last of them. {FLAG}",
            fields=NAME,
            required=("lora_name",),
            content="text/plain",
            errors=(403, 404),
        ),
    ),
]
