"""Answering with generated text: as one object or as events, for any number of choices."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from orcaserve.core.errors import EngineError
from orcaserve.serving.http import Exchange, encode_json, error_object
from orcaserve.serving.params import StreamOptions
from orcaserve.serving.service import Choice, Plan, Service, as_invalid

DONE = b"data: [DONE]\n\n"


class Shape(ABC):
    """How an endpoint writes its answers. `quote`d text is ASCII, so no client can split it in the wrong place.

    kind, event_kind: the `object` of a whole answer and of an event. include_usage: events carry `usage`, null in all
    but the last.
    """

    kind: str
    event_kind: str

    def __init__(self, answer_id: str, model: str, include_usage: bool) -> None:
        self._id, self._model, self._created = answer_id, model, int(time.time())
        # The constant parts of every event, around its list of choices.
        self._open = (
            f'data: {{"id":{quote(answer_id)},"object":"{self.event_kind}","created":{self._created},'
            f'"model":{quote(model)},"choices":['
        )
        self._close = '],"usage":null}\n\n' if include_usage else "]}\n\n"

    @abstractmethod
    def frames(self, index: int, text: str, finish_reason: str | None) -> str:
        """Events for new text of a choice, and for its end if there is a finish reason."""

    @abstractmethod
    def choice(self, text: str) -> dict[str, Any]:
        """The text of a choice in a whole answer, without what all choices have."""

    def frame(self, index: int, content: str, finish_reason: str | None) -> str:
        """One event for one choice; content: its JSON members that are the endpoint's own."""
        reason = f'"{finish_reason}"' if finish_reason else "null"
        return f'{self._open}{{"index":{index},{content},"logprobs":null,"finish_reason":{reason}}}{self._close}'

    def usage_frame(self, usage: dict[str, Any]) -> str:
        return f'{self._open}],"usage":{encode_json(usage).decode()}}}\n\n'

    def answer(self, texts: Sequence[tuple[str, str]], usage: dict[str, Any]) -> dict[str, Any]:
        """The whole answer; texts: text and finish reason of each choice, in order."""
        choices = [
            {"index": index, **self.choice(text), "logprobs": None, "finish_reason": reason}
            for index, (text, reason) in enumerate(texts)
        ]
        return {
            "id": self._id,
            "object": self.kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
            "usage": usage,
        }


async def run_plan(exchange: Exchange, service: Service, plan: Plan, shape: Shape, options: StreamOptions) -> None:
    """Run the choices and answer with their texts, the way the client asked for them.

    Whatever ends this, no choice is left running; that the client left does it within one iteration.
    """
    choices = service.start(plan, exchange.arrival)
    answer = _answer_stream if options.stream else _answer_whole
    try:
        await answer(exchange, choices, shape, plan.n_prompt, options.include_usage)
    finally:
        for choice in choices:
            choice.cancel()


async def _answer_whole(
    exchange: Exchange, choices: Sequence[Choice], shape: Shape, prompt_tokens: int, _include_usage: bool
) -> None:
    """Answer with one object. A failure is an error answer."""
    texts: list[list[str]] = [[] for _ in choices]

    async def keep(choice: Choice, text: str) -> None:
        texts[choice.index].append(text)

    try:
        await _run(choices, keep)
    except EngineError as error:
        await exchange.send_error(as_invalid(error, admitted=any(choice.text.n_tokens for choice in choices)))
        return
    done = [("".join(parts), choice.finish_reason) for parts, choice in zip(texts, choices, strict=True)]
    await exchange.send_json(200, shape.answer(done, usage_of(choices, prompt_tokens)))


async def _answer_stream(
    exchange: Exchange, choices: Sequence[Choice], shape: Shape, prompt_tokens: int, include_usage: bool
) -> None:
    """Send the choices' text as it comes.

    Nothing is sent before the first of them has run: a failure until then is an ordinary error answer; one after it is
    one error event, and the end of the stream without `[DONE]`.
    """
    # Choices write at different times; a lock keeps their events whole, and one that waits for it merges its text.
    lock = asyncio.Lock()
    failed = False

    async def show(choice: Choice, text: str) -> None:
        ended = choice.text.finish_reason is not None
        frames = shape.frames(choice.index, text, choice.finish_reason if ended else None)
        async with lock:
            if failed:
                return
            if not exchange.started:
                await exchange.start_events()
            await exchange.send_events(frames.encode())

    try:
        await _run(choices, show)
    except EngineError as error:
        async with lock:
            failed = True
            failure = as_invalid(error, admitted=exchange.started)
            if not exchange.started:
                await exchange.send_error(failure)
            else:
                value = error_object(failure.status, failure.message, failure.code)
                await exchange.end_events(b"data: " + encode_json(value) + b"\n\n")
        return
    usage = shape.usage_frame(usage_of(choices, prompt_tokens)).encode() if include_usage else b""
    await exchange.end_events(usage + DONE)


def usage_of(choices: Sequence[Choice], prompt_tokens: int) -> dict[str, Any]:
    """prompt_tokens counts each prompt once; completion_tokens counts all choices."""
    completion = sum(choice.text.n_tokens for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt_tokens + completion,
    }


async def _run(choices: Sequence[Choice], show: Callable[[Choice, str], Awaitable[None]]) -> None:
    if len(choices) == 1:
        await choices[0].run(show)
    else:
        await asyncio.gather(*(choice.run(show) for choice in choices))
