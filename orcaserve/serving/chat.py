"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.core.sampling_params import MAX_TOKENS_LIMIT
from orcaserve.serving.fields import CHAT, check_fields
from orcaserve.serving.generation import opening, run_plan, usage_tail
from orcaserve.serving.http import Answer, Exchange
from orcaserve.serving.params import check_model, max_tokens_field, sampling_params, stream_options
from orcaserve.serving.prompts import encode_messages, read_messages
from orcaserve.serving.service import Service


class ChatShape:
    def __init__(self, answer_id: str, model: str, include_usage: bool) -> None:
        self._id = answer_id
        self._model = model
        self._created = int(time.time())
        self._open = opening(answer_id, "chat.completion.chunk", self._created, model)
        self._close = usage_tail(None, include_usage)
        self._begun: set[int] = set()

    def frames(self, index: int, text: str, finish_reason: str | None) -> str:
        frames = ""
        if index not in self._begun:
            self._begun.add(index)
            frames += self._frame(index, '{"role":"assistant","content":""}', "null")
        if text:
            frames += self._frame(index, f'{{"content":{quote(text)}}}', "null")
        if finish_reason:
            frames += self._frame(index, "{}", f'"{finish_reason}"')
        return frames

    def _frame(self, index: int, delta: str, reason: str) -> str:
        choice = f'{{"index":{index},"delta":{delta},"logprobs":null,"finish_reason":{reason}}}'
        return f"{self._open}{choice}{self._close}"

    def usage_frame(self, usage: dict[str, Any]) -> str:
        return self._open + usage_tail(usage, asked=True)

    def answer(self, texts: Sequence[tuple[str, str]], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._model,
            "choices": [
                {
                    "index": index,
                    "message": {"role": "assistant", "content": text, "refusal": None},
                    "logprobs": None,
                    "finish_reason": reason,
                }
                for index, (text, reason) in enumerate(texts)
            ],
            "usage": usage,
        }


def chat_completions(exchange: Exchange, service: Service, body: Mapping[str, Any]) -> Answer:
    """Answer a chat."""
    check_model(body, service.name)
    exchange.name_ignored(check_fields(body, CHAT))
    options = stream_options(body)
    params = sampling_params(body, MAX_TOKENS_LIMIT)
    ids = encode_messages(read_messages(body.get("messages")), service.template, service.tokenizer)
    if max_tokens_field(body) is None:
        params = replace(params, max_tokens=service.default_max_tokens(len(ids)))
    try:
        plan = service.plan([(ids, params)])
    except InvalidRequest as error:
        field = {"prompt": "messages", "max_tokens": max_tokens_field(body) or "messages"}.get(error.field or "")
        raise InvalidRequest(field or error.field, error.message, error.code, error.status) from error
    shape = ChatShape(exchange.id, service.name, options.include_usage)
    return lambda: run_plan(exchange, service, plan, shape, options)
