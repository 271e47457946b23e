"""Triton's generate extension: POST /v2/models/{model}/generate and /generate_stream.

    {"text_input": "The sea is", "parameters": {"max_tokens": 20}}  ->  {"model_name", "model_version", "text_output"}

Parameters are the fields of a completion; they may also stand beside text_input, as Triton lets them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.fields import Field
from orcaserve.serving.handlers import acting
from orcaserve.serving.http import Answer, Exchange
from orcaserve.serving.protocols.translated import BUSY, ELSEWHERE, VERSION, check_name, complete
from orcaserve.serving.route import Operation, Route
from orcaserve.serving.schema_parts import record, text, with_optional
from orcaserve.serving.service import Service
from orcaserve.serving.terms import HEADERS

# What Triton's own backends call some of them.
ALIASES = {"stop_words": "stop", "random_seed": "seed"}
GENERATE: dict[str, Field] = {
    "text_input": Field({"type": "string"}, "The prompt."),
    "id": Field({"type": "string"}, "A name for this request, which the answer repeats."),
    "parameters": Field(
        {"type": "object", "additionalProperties": True},
        f"Fields of POST /v1/completions {ELSEWHERE}; also stop_words for stop, random_seed for seed, and "
        "exclude_input_in_output (false repeats the prompt). They may stand beside text_input as well.",
    ),
}


def generate(exchange: Exchange, service: Service, body: Mapping[str, Any]) -> Answer:
    return _generate(exchange, service, body, stream=False)


def generate_stream(exchange: Exchange, service: Service, body: Mapping[str, Any]) -> Answer:
    return _generate(exchange, service, body, stream=True)


def _generate(exchange: Exchange, service: Service, body: Mapping[str, Any], stream: bool) -> Answer:
    check_name(exchange, service)
    text, name = body.get("text_input"), body.get("id")
    if not isinstance(text, str):
        raise InvalidRequest("text_input", "text_input must be a string", code="invalid_type")
    if name is not None and not isinstance(name, str):
        raise InvalidRequest("id", "id must be a string", code="invalid_type")
    parameters = _parameters(body)
    if not stream and parameters.get("stream") not in (None, False):
        raise InvalidRequest("stream", "for a stream use generate_stream", code="unsupported_parameter")
    named = {"id": name} if name else {}

    def said(answer: Mapping[str, Any]) -> dict[str, Any]:
        text = "".join(choice["text"] for choice in answer["choices"])
        return {**named, "model_name": service.name, "model_version": VERSION, "text_output": text}

    async def whole(outer: Exchange, answer: Mapping[str, Any]) -> None:
        await outer.send_json(200, said(answer))

    return complete(exchange, service, text, parameters, whole, said if stream else None)


def _parameters(body: Mapping[str, Any]) -> dict[str, Any]:
    inside = body.get("parameters")
    if inside is None:
        inside = {}
    if not isinstance(inside, dict):
        raise InvalidRequest("parameters", "parameters must be an object", code="invalid_type")
    beside = {name: value for name, value in body.items() if name not in GENERATE}
    return in_our_words([*beside.items(), *inside.items()])


def in_our_words(given: list[tuple[str, Any]]) -> dict[str, Any]:
    """Parameters under the names of a completion's fields. Raises InvalidRequest if one is given twice."""
    parameters: dict[str, Any] = {}
    for name, value in given:
        if name == "exclude_input_in_output":
            if not isinstance(value, bool):
                raise InvalidRequest(name, f"{name} must be true or false", code="invalid_type")
            name, value = "echo", not value
        name = ALIASES.get(name, name)
        if name in parameters:
            raise InvalidRequest(name, f"{name} is given twice")
        parameters[name] = value
    return parameters


_ANSWER = with_optional(
    record(
        model_name=text("The served model's name."),
        model_version=text(f"{VERSION}, the only one."),
        text_output=text("What the model wrote."),
    ),
    id=text("As it was given."),
)
_STREAM = "Each event is an object as of `generate`, with the text that has come since the one before; no `[DONE]`."


def _routes(verb: str, summary: str, act: Any, stream: str | None) -> list[Route]:
    return [
        Route(
            "POST",
            f"/v2/models/{{model}}{versions}/{verb}",
            acting(act, any_type=True, queues=True),
            Operation(
                summary + (" (by version)" if versions else ""),
                _ANSWER,
                "Triton and KServe",
                fields=GENERATE,
                required=("text_input",),
                stream=stream,
                headers=HEADERS,
                errors=(404, *BUSY),
            ),
        )
        for versions in ("/versions/{version}", "")
    ]


ROUTES = [
    *_routes("generate", "Continue a text", generate, None),
    *_routes("generate_stream", "Continue a text, with events", generate_stream, _STREAM),
]
