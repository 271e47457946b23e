"""How alike texts are, by their embeddings: POST /v1/score as vLLM has it, /v1/rerank as Jina and Cohere do."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.fields import Field, Schema, check_fields, flag
from orcaserve.serving.http import Answer, Exchange
from orcaserve.serving.params import check_model, integer
from orcaserve.serving.pooled import MAX_INPUTS, POOLED, TextEncoder, plan_pooled, run_pooled
from orcaserve.serving.service import Plan, Service
from orcaserve.serving.vectors import cosine

_TEXT: Schema = {"type": "string", "minLength": 1}
_TEXTS: Schema = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_INPUTS}]}
SCORE: dict[str, Field] = {
    "text_1": Field(_TEXTS, f"Text or texts; with those of text_2 at most {MAX_INPUTS}."),
    "text_2": Field(
        _TEXTS, "Text or texts to compare with: a single text_1 with each of them, else each with its own."
    ),
    **POOLED,
}
RERANK: dict[str, Field] = {
    "query": Field(_TEXT, "What the documents are compared with."),
    "documents": Field(
        {
            "type": "array",
            "items": {
                "anyOf": [
                    _TEXT,
                    {
                        "type": "object",
                        "required": ["text"],
                        "properties": {"text": {**_TEXT, "description": "The text."}},
                    },
                ]
            },
            "minItems": 1,
            "maxItems": MAX_INPUTS - 1,
        },
        "Texts, or objects with a text.",
    ),
    "top_n": Field({"type": "integer", "minimum": 1}, "Answer with so many of the best; all unless given."),
    "return_documents": Field({"type": "boolean"}, "Answer with the documents' texts as well. True unless given."),
    **POOLED,
}


def score(exchange: Exchange, service: Service, body: Mapping[str, Any]) -> Answer:
    check_model(body, service.name)
    exchange.name_ignored(check_fields(body, SCORE))
    service.require_pooling()
    first, second = (_texts(body, name) for name in ("text_1", "text_2"))
    if len(first) not in (1, len(second)):
        message = f"text_1 must be one text, or as many as text_2: it has {len(first)}, and text_2 {len(second)}"
        raise InvalidRequest("text_1", message)
    if len(first) + len(second) > MAX_INPUTS:
        raise InvalidRequest("text_2", f"text_1 and text_2 together take at most {MAX_INPUTS} texts")
    encoder = TextEncoder(service, body)
    ids = [*encoder.encode("text_1", first), *encoder.encode("text_2", second)]
    plan = plan_pooled(exchange, service, body, ids)

    async def answer() -> None:
        vectors = await run_pooled(exchange, service, plan)
        scores = await _compare(vectors[: len(first)], vectors[len(first) :])
        data = [{"index": index, "object": "score", "score": value} for index, value in enumerate(scores)]
        await exchange.send_json(
            200,
            {
                "id": exchange.id,
                "object": "list",
                "created": int(time.time()),
                "model": service.name,
                "data": data,
                "usage": usage_of(plan),
            },
        )

    return answer


def rerank(exchange: Exchange, service: Service, body: Mapping[str, Any]) -> Answer:
    check_model(body, service.name)
    exchange.name_ignored(check_fields(body, RERANK))
    service.require_pooling()
    query, documents = body.get("query"), _documents(body)
    if not isinstance(query, str):
        raise InvalidRequest("query", "query must be a string", code="invalid_type")
    top_n = integer(body, "top_n", 1, 2**31 - 1)
    return_documents = flag(body, "return_documents", True)
    encoder = TextEncoder(service, body)
    ids = [*encoder.encode("query", [query]), *encoder.encode("documents", documents)]
    plan = plan_pooled(exchange, service, body, ids)

    async def answer() -> None:
        vectors = await run_pooled(exchange, service, plan)
        scores = await _compare(vectors[:1], vectors[1:])
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[:top_n]
        results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in order]
        if return_documents:
            for result in results:
                result["document"] = {"text": documents[result["index"]]}
        await exchange.send_json(
            200, {"id": exchange.id, "model": service.name, "usage": usage_of(plan), "results": results}
        )

    return answer


def usage_of(plan: Plan) -> dict[str, int]:
    return {"prompt_tokens": plan.n_prompt, "total_tokens": plan.n_prompt}


async def _compare(first: Sequence[array[float]], second: Sequence[array[float]]) -> list[float]:
    """Each of the second with its own of the first, or the only one. Others have their turn in between."""
    scores = []
    for index, vector in enumerate(second):
        scores.append(cosine(first[index if len(first) > 1 else 0], vector))
        await asyncio.sleep(0)
    return scores


def _texts(body: Mapping[str, Any], name: str) -> list[str]:
    value = body.get(name)
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(name, f"{name} must be a string or a list of strings", code="invalid_type")
    if not 1 <= len(texts) <= MAX_INPUTS:
        raise InvalidRequest(name, f"{name} takes 1 to {MAX_INPUTS} texts")
    return texts


def _documents(body: Mapping[str, Any]) -> list[str]:
    value = body.get("documents")
    if not isinstance(value, list):
        raise InvalidRequest("documents", "documents must be a list", code="invalid_type")
    if not 1 <= len(value) <= MAX_INPUTS - 1:
        raise InvalidRequest("documents", f"documents takes 1 to {MAX_INPUTS - 1} documents")
    texts = []
    for document in value:
        text = document.get("text") if isinstance(document, dict) else document
        if not isinstance(text, str):
            message = "documents must hold strings, or objects with a text"
            raise InvalidRequest("documents", message, code="invalid_type")
        texts.append(text)
    return texts
