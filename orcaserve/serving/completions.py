"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.fields import COMPLETION, check_fields, flag
from orcaserve.serving.generation import NOTHING, Extras, Shape, run_plan
from orcaserve.serving.http import Answer, Exchange
from orcaserve.serving.logprobs import LegacyLogprobs, PromptLogprobs
from orcaserve.serving.marked_text import TextOptions
from orcaserve.serving.params import (
    best_of,
    legacy_logprobs,
    max_tokens_field,
    prompt_logprobs,
    sampling_params,
    stream_options,
)
from orcaserve.serving.prompts import encode_prompts, read_prompts
from orcaserve.serving.service import Service
from orcaserve.serving.structured_output import grammar_field
from orcaserve.serving.terms import read_terms

DEFAULT_MAX_TOKENS = 16
MAX_ALL_CHOICES = 1024  # n x prompts


class CompletionShape(Shape):
    kind = event_kind = "text_completion"

    def frames(self, index: int, text: str, finish_reason: str | None, extras: Extras = NOTHING) -> str:
        return self.frame(index, f'"text":{quote(text)}', finish_reason, extras)

    def choice(self, text: str) -> dict[str, Any]:
        return {"text": text}


def completions(exchange: Exchange, service: Service, body: Mapping[str, Any]) -> Answer:
    """Continue prompts."""
    served = service.adapters.served(body)
    exchange.name_ignored(check_fields(body, COMPLETION))
    options = stream_options(body)
    params = sampling_params(body, DEFAULT_MAX_TOKENS, least=0)
    terms = read_terms(exchange, body)
    echo, logprobs, return_ids = flag(body, "echo"), legacy_logprobs(body), flag(body, "return_token_ids")
    if echo and service.facts.source is not None:
        text = "this model's encoder reads the prompt, and its decoder writes another text: there is nothing to echo"
        raise InvalidRequest("echo", text, code="unsupported_parameter")
    n = params.n
    if (n_each := best_of(body, n, options.stream)) > n or logprobs is not None:
        told = logprobs or 0  # those of the tokens themselves are what choices are compared by
        params = replace(params, n=n_each, logprobs=told, prompt_logprobs=logprobs if echo else None)
    if (of_prompt := prompt_logprobs(body, options.stream)) is not None:
        params = replace(params, prompt_logprobs=max(of_prompt, params.prompt_logprobs or 0))
    prompts = read_prompts(body.get("prompt"), service.facts.vocab_size)
    if len(prompts) * params.n > MAX_ALL_CHOICES:
        field = "n" if params.n == n else "best_of"
        raise InvalidRequest(field, f"{field} times the number of prompts must be at most {MAX_ALL_CHOICES}")
    given = max_tokens_field(body) is not None
    work = []
    for ids in encode_prompts(prompts, service.tokenizer, service.facts.longest_prompt):
        most = params.max_tokens if given else service.default_max_tokens(len(ids), DEFAULT_MAX_TOKENS)
        work.append((ids, replace(params, max_tokens=most)))
    marked = params.logprobs is not None or return_ids or of_prompt is not None
    n_kept = n if n_each > n else 0
    plan = service.plan(work, TextOptions(echo, marked), n_kept, grammar_field(body), terms, served.adapter)
    style = None if logprobs is None else LegacyLogprobs(service.tokenizer, logprobs)
    prompt_style = None if of_prompt is None else PromptLogprobs(service.tokenizer, of_prompt)
    shape = CompletionShape(exchange.id, served.name, options, style, return_ids, prompt_style)
    return lambda: run_plan(exchange, service, plan, shape, options)
