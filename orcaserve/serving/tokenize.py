"""POST /tokenize and /detokenize: what the model's tokenizer makes of a text, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.fields import Field, check_fields, flag
from orcaserve.serving.http import Exchange
from orcaserve.serving.params import check_model
from orcaserve.serving.prompts import encode_messages, read_messages
from orcaserve.serving.service import Service

TOKENIZE: dict[str, Field] = {
    "model": Field({"type": "string"}),
    "prompt": Field({"type": "string"}, "Text; or give messages."),
    "messages": Field({"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Message"}}),
    "add_special_tokens": Field({"type": "boolean"}, "For prompt: true unless given."),
    "add_generation_prompt": Field({"type": "boolean"}, "For messages: true unless given."),
}
DETOKENIZE: dict[str, Field] = {
    "model": Field({"type": "string"}),
    "tokens": Field({"type": "array", "items": {"type": "integer", "minimum": 0}}),
    "skip_special_tokens": Field({"type": "boolean"}, "False unless given."),
}


async def tokenize(exchange: Exchange, service: Service, body: Mapping[str, Any]) -> None:
    exchange.name_ignored(check_fields(body, TOKENIZE))
    _check_optional_model(body, service)
    prompt = body.get("prompt")
    if body.get("messages") is not None:
        messages = read_messages(body["messages"])
        ask = flag(body, "add_generation_prompt", True)
        ids = await service.in_thread(lambda: encode_messages(messages, service.template, service.tokenizer, ask))
    elif isinstance(prompt, str):
        special = flag(body, "add_special_tokens", True)
        ids = await service.in_thread(lambda: service.tokenizer.encode(prompt, special))
    else:
        raise InvalidRequest("prompt", "give prompt as a string, or messages", code="invalid_type")
    await exchange.send_json(200, {"tokens": ids, "count": len(ids), "max_model_len": service.facts.context_length})


async def detokenize(exchange: Exchange, service: Service, body: Mapping[str, Any]) -> None:
    exchange.name_ignored(check_fields(body, DETOKENIZE))
    _check_optional_model(body, service)
    tokens = body.get("tokens")
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise InvalidRequest("tokens", "tokens must be a list of token ids", code="invalid_type")
    if tokens and not (min(tokens) >= 0 and max(tokens) < service.facts.vocab_size):
        raise InvalidRequest("tokens", f"tokens holds a token id outside 0..{service.facts.vocab_size - 1}")
    skip = flag(body, "skip_special_tokens")
    text = await service.in_thread(lambda: service.tokenizer.decode(tokens, skip))
    await exchange.send_json(200, {"prompt": text})


def _check_optional_model(body: Mapping[str, Any], service: Service) -> None:
    if body.get("model") is not None:
        check_model(body, service.name)
