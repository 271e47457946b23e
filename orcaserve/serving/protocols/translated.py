"""Another protocol's request as a completion, and the completion's answer as that protocol's.

There is one way to the engine, `completions`: what is said here goes through its checks and is written by its replies.
Between the two stands an exchange without a socket, whose messages are read and written anew.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.completions import completions
from orcaserve.serving.http import Answer, Exchange, Message, encode_json
from orcaserve.serving.route import Handle, Operation, Route
from orcaserve.serving.service import Service
from orcaserve.serving.terms import headers_of_terms

BUSY = (429, 504)  # what whoever generates text may answer beside other errors
VERSION = "1"  # of the served model: there is one
# What a completion's answer has a place for, and the answers of the other protocols have not.
ELSEWHERE = "other than n, logprobs, return_token_ids and stream_options"
NO_PLACE = ("model", "prompt", "stream_options", "logprobs", "prompt_logprobs", "top_logprobs", "return_token_ids")
Whole = Callable[[Exchange, Mapping[str, Any]], Awaitable[None]]
"""Writes the whole answer, of a completion's."""
Event = Callable[[Mapping[str, Any]], Any]
"""The JSON of an event, of a completion's."""


def check_name(exchange: Exchange, service: Service) -> None:
    """Raises InvalidRequest (404) unless the path names the served model, and its version if it names one."""
    if exchange.params["model"] != service.name:
        raise InvalidRequest("model", "the model does not exist", code="model_not_found", status=404)
    if exchange.params.get("version", VERSION) != VERSION:
        message = f"the model has no such version, only {VERSION}"
        raise InvalidRequest("version", message, code="version_not_found", status=404)


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raises InvalidRequest for fields of a completion that would change what only its own answer can say."""
    for name in NO_PLACE:
        if (value := parameters.get(name)) is not None and value is not False:
            message = f"{name} has no place in this protocol: use /v1/completions"
            raise InvalidRequest(name, message, code="unsupported_parameter")
    if parameters.get("n") not in (None, 1):
        raise InvalidRequest("n", "n must be 1 in this protocol: use /v1/completions", code="unsupported_parameter")


def complete(
    exchange: Exchange,
    service: Service,
    prompt: Any,
    parameters: Mapping[str, Any],
    whole: Whole,
    event: Event | None = None,
    ignored: list[str] | None = None,
) -> Answer:
    """The answer to a prompt in another protocol. event: how it writes events, if they were asked for.

    ignored: names beside the parameters that have no effect. Raises InvalidRequest.
    """
    check_parameters(parameters)
    wanted = {name: value for name, value in parameters.items() if name not in NO_PLACE}
    body = {**wanted, "model": service.name, "prompt": prompt, "stream": event is not None}
    inner = Exchange(
        {**exchange.scope, "headers": headers_of_terms(exchange), "extensions": {}},
        exchange.no_more,
        _Translating(exchange, whole, event).send,
        exchange.id,
    )
    inner.arrival, inner.cancellation, inner.account = exchange.arrival, exchange.cancellation, exchange.account
    inner.key, inner.count_failure = exchange.key, exchange.count_failure
    answer = completions(inner, service, body)
    exchange.name_ignored([*(ignored or ()), *inner.ignored])
    return answer


class _Translating:
    """Takes the ASGI messages of a completion's answer."""

    def __init__(self, exchange: Exchange, whole: Whole, event: Event | None) -> None:
        self._exchange = exchange
        self._whole = whole
        self._event = event
        self._status = 200
        self._streams = False
        self._kept = b""  # of a whole answer all that has come, of events the beginning of the next

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._streams = dict(message["headers"])[b"content-type"].startswith(b"text/event-stream")
            if self._streams:
                await self._exchange.start_events()
            return
        self._kept += message.get("body", b"")
        more = bool(message.get("more_body", False))
        if self._streams:
            await self._send_events(more)
        elif not more:
            await self._send_whole(json.loads(self._kept))

    async def _send_whole(self, answer: Mapping[str, Any]) -> None:
        if self._status == 200:
            await self._whole(self._exchange, answer)
            return
        error = answer["error"]
        await self._exchange.send_error(InvalidRequest(error["param"], error["message"], error["code"], self._status))

    async def _send_events(self, more: bool) -> None:
        *frames, self._kept = self._kept.split(b"\n\n")
        said = [json.loads(frame[6:]) for frame in frames if frame.startswith(b"data: {")]
        out = b"".join(b"data: " + encode_json(self._in_own_words(event)) + b"\n\n" for event in said)
        if not more:
            await self._exchange.end_events(out)
        elif out:
            await self._exchange.send_events(out)

    def _in_own_words(self, event: Mapping[str, Any]) -> Any:
        assert self._event is not None
        return {"error": event["error"]["message"]} if "error" in event else self._event(event)


def of_model(
    tag: str,
    model: str,
    method: str,
    end: str,
    handle: Handle,
    summary: str,
    answer: Any,
    errors: tuple[int, ...] = (),
    **more: Any,
) -> list[Route]:
    """Routes under the path of a model and, as both protocols have them, under that of its only version."""
    return [
        Route(
            method,
            f"{model}{versions}{end}",
            handle,
            Operation(summary + (" (by version)" if versions else ""), answer, tag, errors=(404, *errors), **more),
        )
        for versions in ("/versions/{version}", "")
    ]
