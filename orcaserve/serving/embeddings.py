"""POST /v1/embeddings, which a model that generates text cannot answer: it says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.fields import Field
from orcaserve.serving.http import Answer, Exchange
from orcaserve.serving.service import Service

EMBEDDINGS: dict[str, Field] = {
    "model": Field({"type": "string"}, "The served model's name."),
    "input": Field({}, "Text or texts."),
}


def embeddings(exchange: Exchange, service: Service, body: Mapping[str, Any]) -> Answer:
    service.adapters.served(body)
    message = "this model generates text; it makes no embeddings"
    raise InvalidRequest("model", message, code="embeddings_not_supported")
