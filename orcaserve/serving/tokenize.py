"""POST /tokenize and /detokenize: what the model's tokenizer makes of a text, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.conversation import read_conversation
from orcaserve.serving.fields import MAX_WORK, TEMPLATE, TOOLS, Field, check_fields, flag, without_effect
from orcaserve.serving.http import Answer, Exchange
from orcaserve.serving.prompts import encode_text
from orcaserve.serving.service import Service
from orcaserve.serving.tool_calls.tools import read_tools

TOKENIZE: dict[str, Field] = {
    "model": Field({"type": "string"}, "The name of the served model or an adapter; may be left out."),
    "prompt": Field({"type": "string"}, f"Text of at most {MAX_WORK} tokens; or give messages."),
    "messages": Field(
        {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Message"}},
        "A conversation, as of POST /v1/chat/completions.",
    ),
    "add_special_tokens": Field(
        {"type": "boolean"},
        "For prompt: let the tokenizer add its own, such as a beginning of text. True unless given. With messages it "
        "can only be false: the chat template has written them.",
    ),
    "return_token_strs": Field(
        {"type": "boolean"}, "Also the tokens as the vocabulary spells them. False unless given."
    ),
    **TEMPLATE,
    **TOOLS,
}
DETOKENIZE: dict[str, Field] = {
    "model": Field({"type": "string"}, "The name of the served model or an adapter; may be left out."),
    "tokens": Field({"type": "array", "items": {"type": "integer", "minimum": 0}}, "Token ids."),
    "skip_special_tokens": Field({"type": "boolean"}, "Leave special tokens out of the text. False unless given."),
}


def tokenize(exchange: Exchange, service: Service, body: Mapping[str, Any]) -> Answer:
    exchange.name_ignored(without_effect(check_fields(body, TOKENIZE), service.tokenizer.chat_template))
    _check_optional_model(body, service)
    prompt, most = body.get("prompt"), service.facts.context_length
    if prompt is not None and body.get("messages") is not None:
        raise InvalidRequest("prompt", "give prompt or messages, not both")
    if body.get("messages") is not None:
        if flag(body, "add_special_tokens"):
            raise InvalidRequest("add_special_tokens", "with messages add_special_tokens must be false")
        use = read_tools(body)
        conversation = read_conversation(body, use.tools if use else ())
        ids = service.chat_encoder(body.get("chat_template"), use is not None).encode(conversation, most)
    elif isinstance(prompt, str):
        ids = encode_text("prompt", prompt, service.tokenizer, most, flag(body, "add_special_tokens", True))
    else:
        raise InvalidRequest("prompt", "give prompt as a string, or messages", code="invalid_type")
    if len(ids) > MAX_WORK:
        raise InvalidRequest("prompt", f"the text makes more than {MAX_WORK} tokens")
    spelled = service.tokenizer.spell(ids) if flag(body, "return_token_strs") else None
    return exchange.json_answer(
        {"count": len(ids), "max_model_len": service.facts.longest_request, "tokens": ids, "token_strs": spelled}
    )


def detokenize(exchange: Exchange, service: Service, body: Mapping[str, Any]) -> Answer:
    exchange.name_ignored(check_fields(body, DETOKENIZE))
    _check_optional_model(body, service)
    tokens = body.get("tokens")
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise InvalidRequest("tokens", "tokens must be a list of token ids", code="invalid_type")
    if tokens and not (min(tokens) >= 0 and max(tokens) < service.facts.vocab_size):
        raise InvalidRequest("tokens", f"tokens holds a token id outside 0..{service.facts.vocab_size - 1}")
    return exchange.json_answer({"prompt": service.tokenizer.decode(tokens, flag(body, "skip_special_tokens"))})


def _check_optional_model(body: Mapping[str, Any], service: Service) -> None:
    if body.get("model") is not None:
        service.adapters.served(body)
