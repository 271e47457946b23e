"""POST /v1/embeddings, as OpenAI has it."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.fields import IDS, Field, check_fields, flag
from orcaserve.serving.http import Answer, Exchange
from orcaserve.serving.params import check_model, integer
from orcaserve.serving.pooled import MAX_INPUTS, POOLED, TextEncoder, plan_pooled, run_pooled
from orcaserve.serving.prompts import read_texts
from orcaserve.serving.service import Plan, Service
from orcaserve.serving.vectors import as_base64, as_json, shortened

MAX_NUMBERS = 2**22  # of an answer's vectors
_STRINGS = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_INPUTS}
EMBEDDINGS: dict[str, Field] = {
    "input": Field(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                _STRINGS,
                IDS,
                {"type": "array", "items": IDS, "minItems": 1, "maxItems": MAX_INPUTS},
            ]
        },
        "Text, texts, token ids, or lists of token ids; none may be empty.",
    ),
    **POOLED,
    "encoding_format": Field(
        {"type": "string", "enum": ["float", "base64"]},
        "float unless given: a list of numbers. base64: the bytes of a list of float32, little-endian.",
    ),
    "dimensions": Field(
        {"type": "integer", "minimum": 1},
        "The first so many numbers of each vector, normalised anew; all unless given. The texts' number times this is "
        f"at most {MAX_NUMBERS}.",
    ),
    "normalize": Field({"type": "boolean"}, "Scale each vector to length 1. True unless given."),
}


def embeddings(exchange: Exchange, service: Service, body: Mapping[str, Any]) -> Answer:
    check_model(body, service.name)
    exchange.name_ignored(check_fields(body, EMBEDDINGS))
    service.require_pooling()
    texts = read_texts("input", body.get("input"), service.facts.vocab_size, MAX_INPUTS)
    as_bytes = _encoding_format(body) == "base64"
    size = service.facts.embedding_size
    dimensions, normalize = integer(body, "dimensions", 1, size) or size, flag(body, "normalize", True)
    if len(texts) * dimensions > MAX_NUMBERS:
        message = f"the texts' number times dimensions ({len(texts)} x {dimensions}) must be at most {MAX_NUMBERS}"
        raise InvalidRequest("input", message)
    plan = plan_pooled(exchange, service, body, TextEncoder(service, body).encode("input", texts))
    return lambda: _answer(exchange, service, plan, as_bytes, dimensions, normalize)


async def _answer(
    exchange: Exchange, service: Service, plan: Plan, as_bytes: bool, dimensions: int, normalize: bool
) -> None:
    vectors = await run_pooled(exchange, service, plan)
    data = await written(vectors, as_bytes, dimensions, normalize)
    n = plan.n_prompt
    usage = f'"usage":{{"prompt_tokens":{n},"total_tokens":{n}}}'
    body = f'{{"object":"list","data":[{",".join(data)}],"model":{quote(service.name)},{usage}}}'
    await exchange.send_bytes(200, body.encode(), b"application/json")


async def written(vectors: Sequence[array[float]], as_bytes: bool, dimensions: int, normalize: bool) -> list[str]:
    """Each as the answer has it. Others have their turn after each of them, which may take a millisecond or two."""
    data = []
    for index, vector in enumerate(vectors):
        vector = shortened(vector, dimensions, normalize)
        numbers = f'"{as_base64(vector)}"' if as_bytes else as_json(vector)
        data.append(f'{{"object":"embedding","index":{index},"embedding":{numbers}}}')
        await asyncio.sleep(0)
    return data


def _encoding_format(body: Mapping[str, Any]) -> str:
    value = body.get("encoding_format")
    if value not in (None, "float", "base64"):
        raise InvalidRequest("encoding_format", "encoding_format must be float or base64")
    return value or "float"
