"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.fields import COMPLETION, check_fields
from orcaserve.serving.generation import Shape, run_plan
from orcaserve.serving.http import Answer, Exchange
from orcaserve.serving.params import check_model, max_tokens_field, sampling_params, stream_options
from orcaserve.serving.prompts import encode_prompts, read_prompts
from orcaserve.serving.service import Service
from orcaserve.serving.structured_output import grammar_field

DEFAULT_MAX_TOKENS = 16
MAX_ALL_CHOICES = 1024  # n x prompts


class CompletionShape(Shape):
    kind = event_kind = "text_completion"

    def frames(self, index: int, text: str, finish_reason: str | None) -> str:
        return self.frame(index, f'"text":{quote(text)}', finish_reason)

    def choice(self, text: str) -> dict[str, Any]:
        return {"text": text}


def completions(exchange: Exchange, service: Service, body: Mapping[str, Any]) -> Answer:
    """Continue prompts."""
    check_model(body, service.name)
    exchange.name_ignored(check_fields(body, COMPLETION))
    options = stream_options(body)
    params = sampling_params(body, DEFAULT_MAX_TOKENS)
    prompts = read_prompts(body.get("prompt"), service.facts.vocab_size)
    if len(prompts) * params.n > MAX_ALL_CHOICES:
        raise InvalidRequest("n", f"n times the number of prompts must be at most {MAX_ALL_CHOICES}")
    given = max_tokens_field(body) is not None
    work = []
    for ids in encode_prompts(prompts, service.tokenizer, service.facts.longest_request):
        most = params.max_tokens if given else service.default_max_tokens(len(ids), DEFAULT_MAX_TOKENS)
        work.append((ids, replace(params, max_tokens=most)))
    plan = service.plan(work, grammar_field(body))
    shape = CompletionShape(exchange.id, service.name, options.include_usage)
    return lambda: run_plan(exchange, service, plan, shape, options)
