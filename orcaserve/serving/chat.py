"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.core.sampling_params import MAX_TOKENS_LIMIT
from orcaserve.serving.fields import CHAT, check_fields, flag
from orcaserve.serving.generation import NOTHING, Extras, Shape, run_plan
from orcaserve.serving.http import Answer, Exchange
from orcaserve.serving.logprobs import ChatLogprobs, LogprobsStyle
from orcaserve.serving.marked_text import TextOptions
from orcaserve.serving.params import (
    StreamOptions,
    chat_logprobs,
    check_model,
    max_tokens_field,
    sampling_params,
    stream_options,
)
from orcaserve.serving.prompts import encode_messages, read_messages
from orcaserve.serving.service import Service
from orcaserve.serving.structured_output import grammar_field


class ChatShape(Shape):
    kind = "chat.completion"
    event_kind = "chat.completion.chunk"

    ids_of_prompt_outside = True

    def __init__(
        self,
        answer_id: str,
        model: str,
        options: StreamOptions,
        style: LogprobsStyle | None = None,
        return_ids: bool = False,
    ) -> None:
        super().__init__(answer_id, model, options, style, return_ids)
        self._begun: set[int] = set()

    def frames(self, index: int, text: str, finish_reason: str | None, extras: Extras = NOTHING) -> str:
        frames = ""
        if index not in self._begun:
            self._begun.add(index)
            frames += self.frame(index, '"delta":{"role":"assistant","content":""}', None, Extras(outer=extras.outer))
            extras = replace(extras, outer="") if extras.outer else extras
        if text or extras is not NOTHING:
            frames += self.frame(index, f'"delta":{{"content":{quote(text)}}}', None, extras)
        if finish_reason:
            frames += self.frame(index, '"delta":{}', finish_reason)
        return frames

    def choice(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}


def chat_completions(exchange: Exchange, service: Service, body: Mapping[str, Any]) -> Answer:
    """Answer a chat."""
    check_model(body, service.name)
    exchange.name_ignored(check_fields(body, CHAT))
    options = stream_options(body)
    params = sampling_params(body, MAX_TOKENS_LIMIT)
    logprobs, ids_too = chat_logprobs(body), flag(body, "return_token_ids")
    if logprobs is not None:
        params = replace(params, logprobs=logprobs)
    messages = read_messages(body.get("messages"))
    ids = encode_messages(messages, service.template, service.tokenizer, service.facts.longest_request)
    if max_tokens_field(body) is None:
        params = replace(params, max_tokens=service.default_max_tokens(len(ids)))
    try:
        text_options = TextOptions(marked=logprobs is not None or ids_too)
        plan = service.plan([(ids, params)], text_options, grammar_field=grammar_field(body))
    except InvalidRequest as error:
        field = {"prompt": "messages", "max_tokens": max_tokens_field(body) or "messages"}.get(error.field or "")
        raise InvalidRequest(field or error.field, error.message, error.code, error.status) from error
    style = None if logprobs is None else ChatLogprobs(service.tokenizer, logprobs)
    shape = ChatShape(exchange.id, service.name, options, style, ids_too)
    return lambda: run_plan(exchange, service, plan, shape, options)
