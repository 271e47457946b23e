"""From a request's body to SamplingParams and the model's name: the checks both generating endpoints share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.core.logprobs import MAX_TOP_LOGPROBS
from orcaserve.core.sampling_params import MAX_CHOICES, MAX_TOKENS_LIMIT, SamplingParams
from orcaserve.serving.fields import MAX_LEGACY_LOGPROBS, SAMPLING, flag
from orcaserve.serving.structured_output import read_grammar

_ID = re.compile(r"[0-9]{1,10}")
_SENT_AS_THEY_ARE = tuple(name for name in SAMPLING if name not in ("logit_bias", "stop", "max_tokens"))


@dataclass(frozen=True)
class StreamOptions:
    """stream: answer with events; include_usage: and with the token counts before the end; continuous_usage: and with
    those so far in every event."""

    stream: bool
    include_usage: bool
    continuous_usage: bool = False


def check_model(body: Mapping[str, Any], served: str) -> None:
    """Raises InvalidRequest (404) unless `model` is the served model's own name: adapters have no say here."""
    if body.get("model") != served:
        message = "the model does not exist: GET /v1/models lists what is served"
        raise InvalidRequest("model", message, code="model_not_found", status=404)


def stream_options(body: Mapping[str, Any]) -> StreamOptions:
    stream = flag(body, "stream")
    options = body.get("stream_options")
    if options is None:
        return StreamOptions(stream, include_usage=False)
    if not isinstance(options, dict):
        raise InvalidRequest("stream_options", "stream_options must be an object", code="invalid_type")
    if not stream:
        raise InvalidRequest("stream_options", "stream_options is only for stream: true")
    try:
        include_usage, continuous = flag(options, "include_usage"), flag(options, "continuous_usage_stats")
        return StreamOptions(stream, include_usage, include_usage and continuous)
    except InvalidRequest as error:
        raise InvalidRequest("stream_options", error.message, code=error.code) from error


def sampling_params(body: Mapping[str, Any], max_tokens: int, least: int = 1) -> SamplingParams:
    """The body's sampling fields; `max_tokens` holds where the client gave none, who may give `least` or more.

    Raises InvalidRequest naming the field as the client wrote it.
    """
    values = {name: body[name] for name in _SENT_AS_THEY_ARE if body.get(name) is not None}
    if body.get("logit_bias") is not None:
        values["logit_bias"] = _logit_bias(body["logit_bias"])
    if body.get("stop") is not None:
        values["stop"] = _stop(body["stop"])
    if body.get("user") is not None and not isinstance(body["user"], str):
        raise InvalidRequest("user", "user must be a string", code="invalid_type")
    name = max_tokens_field(body)
    grammar = read_grammar(body)
    try:
        params = SamplingParams(max_tokens=max_tokens if name is None else body[name], grammar=grammar, **values)
        if params.max_tokens < least:
            raise InvalidRequest("max_tokens", f"max_tokens must be an integer from {least} to {MAX_TOKENS_LIMIT}")
        return params
    except InvalidRequest as error:
        if error.field == "max_tokens" and name is not None:
            message = error.message.replace("max_tokens", name).replace("from 0 to", f"from {least} to")
            raise InvalidRequest(name, message, error.code) from error
        raise


def legacy_logprobs(body: Mapping[str, Any]) -> int | None:
    """`logprobs` of completions: a number of best tokens."""
    return integer(body, "logprobs", 0, MAX_LEGACY_LOGPROBS)


def chat_logprobs(body: Mapping[str, Any]) -> int | None:
    """`logprobs` and `top_logprobs` of chats: a number of best tokens, or None if they are not asked for."""
    asked, n_top = flag(body, "logprobs"), integer(body, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    if n_top and not asked:
        raise InvalidRequest("top_logprobs", "top_logprobs is only for logprobs: true")
    return (n_top or 0) if asked else None


def prompt_logprobs(body: Mapping[str, Any], stream: bool) -> int | None:
    """A number of best tokens, or None if they are not asked for."""
    n_top = integer(body, "prompt_logprobs", 0, MAX_TOP_LOGPROBS)
    if n_top is not None and stream:
        raise InvalidRequest("prompt_logprobs", "prompt_logprobs is not for stream: true")
    return n_top


def best_of(body: Mapping[str, Any], n: int, stream: bool) -> int:
    """How many choices to generate for the n of the answer."""
    value = integer(body, "best_of", 1, MAX_CHOICES)
    if value is None:
        return n
    if value < n:
        raise InvalidRequest("best_of", "best_of must be at least n")
    if value > n and stream:
        raise InvalidRequest("best_of", "best_of must not be more than n with stream: true")
    return value


def integer(body: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    """A field's value. Raises InvalidRequest unless it is an integer from low to high, or absent."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(name, f"{name} must be an integer", code="invalid_type")
    if not low <= value <= high:
        raise InvalidRequest(name, f"{name} must be an integer from {low} to {high}")
    return value


def max_tokens_field(body: Mapping[str, Any]) -> str | None:
    """The name under which the client gave the most tokens to generate."""
    given = [name for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    if len(given) == 2 and body[given[0]] != body[given[1]]:
        raise InvalidRequest("max_tokens", "max_tokens and max_completion_tokens differ: give one of them")
    return given[0] if given else None


def _logit_bias(value: Any) -> dict[int, Any]:
    """JSON has only strings for keys; each must be a plain decimal id. Values are SamplingParams' business."""
    if not isinstance(value, dict):
        raise InvalidRequest("logit_bias", "logit_bias must be an object from token ids to numbers", "invalid_type")
    if not all(_ID.fullmatch(key) for key in value):
        raise InvalidRequest("logit_bias", "each key of logit_bias must be a token id")
    bias = {int(key): number for key, number in value.items()}
    if len(bias) != len(value):
        raise InvalidRequest("logit_bias", "logit_bias names the same token id twice")
    return bias


def _stop(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise InvalidRequest("stop", "stop must be a string or a list of strings", code="invalid_type")
    return value
