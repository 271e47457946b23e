"""From a request's body to SamplingParams and the model's name: the checks both generating endpoints share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.core.sampling_params import SamplingParams
from orcaserve.serving.fields import SAMPLING, flag
from orcaserve.serving.structured_output import read_grammar

_ID = re.compile(r"[0-9]{1,10}")
_SENT_AS_THEY_ARE = tuple(name for name in SAMPLING if name not in ("logit_bias", "stop", "max_tokens"))


@dataclass(frozen=True)
class StreamOptions:
    """stream: answer with events; include_usage: and with the token counts before the end."""

    stream: bool
    include_usage: bool


def check_model(body: Mapping[str, Any], served: str) -> None:
    """Raises InvalidRequest (404) unless `model` is the served model's name."""
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
    if flag(options, "continuous_usage_stats"):
        message = "continuous_usage_stats is not supported"
        raise InvalidRequest("stream_options", message, code="unsupported_parameter")
    try:
        return StreamOptions(stream, flag(options, "include_usage"))
    except InvalidRequest as error:
        raise InvalidRequest("stream_options", error.message, code=error.code) from error


def sampling_params(body: Mapping[str, Any], max_tokens: int) -> SamplingParams:
    """The body's sampling fields; `max_tokens` holds where the client gave none.

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
        return SamplingParams(max_tokens=max_tokens if name is None else body[name], grammar=grammar, **values)
    except InvalidRequest as error:
        if error.field == "max_tokens" and name is not None:
            raise InvalidRequest(name, error.message.replace("max_tokens", name), error.code) from error
        raise


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
