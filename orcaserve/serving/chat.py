"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.core.sampling_params import MAX_TOKENS_LIMIT, SamplingParams
from orcaserve.serving.conversation import ChatEncoder, read_conversation
from orcaserve.serving.fields import CHAT, check_fields, flag, without_effect
from orcaserve.serving.generation import NOTHING, Extras, Shape, run_plan
from orcaserve.serving.http import Answer, Exchange
from orcaserve.serving.logprobs import ChatLogprobs, LogprobsStyle, PromptLogprobs
from orcaserve.serving.marked_text import TextOptions
from orcaserve.serving.params import (
    StreamOptions,
    chat_logprobs,
    max_tokens_field,
    prompt_logprobs,
    sampling_params,
    stream_options,
)
from orcaserve.serving.service import Service
from orcaserve.serving.structured_output import grammar_field
from orcaserve.serving.terms import read_terms
from orcaserve.serving.tool_calls.answer import UNBOUNDED, CallReading, StreamedCalls
from orcaserve.serving.tool_calls.format import CallFormat
from orcaserve.serving.tool_calls.formats import format_for
from orcaserve.serving.tool_calls.grammar import grammar_of_calls
from orcaserve.serving.tool_calls.hermes import Hermes
from orcaserve.serving.tool_calls.tools import ToolUse, read_tools


class ChatShape(Shape):
    """reading: how calls are found in the texts; None if none are to be."""

    kind = "chat.completion"
    event_kind = "chat.completion.chunk"

    prompt_outside = True

    def __init__(
        self,
        answer_id: str,
        model: str,
        options: StreamOptions,
        style: LogprobsStyle | None = None,
        return_ids: bool = False,
        prompt_style: PromptLogprobs | None = None,
        reading: CallReading | None = None,
    ) -> None:
        super().__init__(answer_id, model, options, style, return_ids, prompt_style)
        self._reading = reading
        self._begun: dict[int, StreamedCalls | None] = {}

    def frames(self, index: int, text: str, finish_reason: str | None, extras: Extras = NOTHING) -> str:
        frames = ""
        if index not in self._begun:
            self._begun[index] = None if self._reading is None else StreamedCalls(self._reading)
            content = '""' if self._reading is None else "null"  # an answer of calls alone has none
            head = f'"delta":{{"role":"assistant","content":{content}}}'
            frames += self.frame(index, head, None, Extras(outer=extras.outer))
            extras = replace(extras, outer="") if extras.outer else extras
        calls = self._begun[index]
        if calls is None:
            deltas = [f'{{"content":{quote(text)}}}'] if text else []
        else:
            deltas = calls.deltas(text, finish_reason)
            finish_reason = calls.reason(finish_reason)
        if not deltas and extras is not NOTHING:
            deltas = ['{"content":""}' if calls is None else "{}"]
        for delta in deltas:
            frames += self.frame(index, f'"delta":{delta}', None, extras)
            extras = NOTHING  # of all the text that has come; the first event tells
        if finish_reason:
            frames += self.frame(index, '"delta":{}', finish_reason)
        return frames

    def choice(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def told(self, text: str, finish_reason: str | None) -> tuple[dict[str, Any], str | None]:
        if self._reading is None:
            return super().told(text, finish_reason)
        message, finish_reason = self._reading.message(text, finish_reason)
        return {"message": message}, finish_reason


def chat_completions(exchange: Exchange, service: Service, body: Mapping[str, Any]) -> Answer:
    """Answer a chat."""
    served = service.adapters.served(body)
    exchange.name_ignored(without_effect(check_fields(body, CHAT), service.tokenizer.chat_template))
    options = stream_options(body)
    params = sampling_params(body, MAX_TOKENS_LIMIT)
    terms = read_terms(exchange, body)
    logprobs, ids_too = chat_logprobs(body), flag(body, "return_token_ids")
    of_prompt = prompt_logprobs(body, options.stream)
    if logprobs is not None or of_prompt is not None:
        params = replace(params, logprobs=logprobs, prompt_logprobs=of_prompt)
    use = read_tools(body)
    conversation = read_conversation(body, use.tools if use else ())
    encoder = service.chat_encoder(body.get("chat_template"), use is not None)
    ids = encoder.encode(conversation, service.facts.longest_prompt)
    if max_tokens_field(body) is None:
        params = replace(params, max_tokens=service.default_max_tokens(len(ids)))
    text_options = TextOptions(marked=logprobs is not None or ids_too or of_prompt is not None)
    reading, asks_for_grammar = None, grammar_field(body)
    if use is not None:
        form = call_format(encoder, service.call_parser)
        marks = service.tokenizer.special_among(form.marks.all)
        params = replace(params, grammar=grammar_of_calls(use, form, marks, params.grammar))
        text_options = replace(text_options, shown=frozenset(marks.values()))
        reading, asks_for_grammar = _reading(use, form, marks, params), asks_for_grammar or "tools"
    try:
        plan = service.plan(
            [(ids, params)], text_options, grammar_field=asks_for_grammar, terms=terms, adapter=served.adapter
        )
    except InvalidRequest as error:
        field = {"prompt": "messages", "max_tokens": max_tokens_field(body) or "messages"}.get(error.field or "")
        raise InvalidRequest(field or error.field, error.message, error.code, error.status) from error
    style = None if logprobs is None else ChatLogprobs(service.tokenizer, logprobs)
    prompt_style = None if of_prompt is None else PromptLogprobs(service.tokenizer, of_prompt)
    shape = ChatShape(exchange.id, served.name, options, style, ids_too, prompt_style, reading)
    return lambda: run_plan(exchange, service, plan, shape, options)


def call_format(encoder: ChatEncoder, name: str | None) -> CallFormat:
    """The named one, or the template's. One that knows no tools is told of Hermes' in words."""
    source = encoder.template.source
    return Hermes(source) if name is None and not encoder.takes_tools else format_for(source, name)


def _reading(use: ToolUse, form: CallFormat, marks: Mapping[str, int], params: SamplingParams) -> CallReading:
    most = UNBOUNDED if use.most is None else use.most
    return CallReading(form, use.names, most, tuple(marks) if params.skip_special_tokens else ())
