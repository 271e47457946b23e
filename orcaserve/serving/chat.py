"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.core.sampling_params import MAX_TOKENS_LIMIT
from orcaserve.serving.fields import CHAT, check_fields, without_effect
from orcaserve.serving.generation import Shape, run_plan
from orcaserve.serving.http import Answer, Exchange
from orcaserve.serving.params import check_model, max_tokens_field, sampling_params, stream_options
from orcaserve.serving.prompts import encode_messages, read_messages
from orcaserve.serving.service import Service


class ChatShape(Shape):
    kind = "chat.completion"
    event_kind = "chat.completion.chunk"

    def __init__(self, answer_id: str, model: str, include_usage: bool) -> None:
        super().__init__(answer_id, model, include_usage)
        self._begun: set[int] = set()

    def frames(self, index: int, text: str, finish_reason: str | None) -> str:
        frames = ""
        if index not in self._begun:
            self._begun.add(index)
            frames += self.frame(index, '"delta":{"role":"assistant","content":""}', None)
        if text:
            frames += self.frame(index, f'"delta":{{"content":{quote(text)}}}', None)
        if finish_reason:
            frames += self.frame(index, '"delta":{}', finish_reason)
        return frames

    def choice(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}


def chat_completions(exchange: Exchange, service: Service, body: Mapping[str, Any]) -> Answer:
    """Answer a chat."""
    check_model(body, service.name)
    exchange.name_ignored(without_effect(check_fields(body, CHAT), service.tokenizer.chat_template))
    options = stream_options(body)
    params = sampling_params(body, MAX_TOKENS_LIMIT)
    messages = read_messages(body.get("messages"))
    ids = encode_messages(messages, service.template, service.tokenizer, service.facts.longest_request)
    if max_tokens_field(body) is None:
        params = replace(params, max_tokens=service.default_max_tokens(len(ids)))
    try:
        plan = service.plan([(ids, params)])
    except InvalidRequest as error:
        field = {"prompt": "messages", "max_tokens": max_tokens_field(body) or "messages"}.get(error.field or "")
        raise InvalidRequest(field or error.field, error.message, error.code, error.status) from error
    shape = ChatShape(exchange.id, service.name, options.include_usage)
    return lambda: run_plan(exchange, service, plan, shape, options)
