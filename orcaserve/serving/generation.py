"""Answering with generated text: as one object or as events, for any number of choices."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from orcaserve.core.errors import EngineError, InvalidRequest
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

    def answer(self, texts: Sequence[tuple[str, str | None]], usage: dict[str, Any]) -> dict[str, Any]:
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
    kind = StreamedReply if options.stream else WholeReply
    reply = kind(exchange, shape, plan, options.include_usage)
    choices = service.start(plan, exchange.arrival, reply)
    exchange.cancellation.listen(lambda: _stop(choices))
    try:
        await reply.send(choices)
    finally:
        for choice in choices:
            choice.cancel()


def _stop(choices: Sequence[Choice]) -> None:
    for choice in choices:
        choice.stop()


class Reply(ABC):
    """The audience of a request's choices. They call, one task sends; it sleeps while there is nothing for it to do."""

    def __init__(self, exchange: Exchange, shape: Shape, plan: Plan, include_usage: bool) -> None:
        self._exchange = exchange
        self._shape = shape
        self._n_prompt = plan.n_prompt
        self._include_usage = include_usage
        self._n_running = len(plan.choices)
        self._error: Exception | None = None
        self._something_to_do = asyncio.Event()

    @abstractmethod
    def show(self, choice: Choice, text: str) -> None:
        """See Audience."""

    @abstractmethod
    async def send(self, choices: Sequence[Choice]) -> None:
        """Answer, until all choices are over. A mistake of ours in one of them is raised here."""

    def fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._something_to_do.set()

    async def _work(self) -> None:
        """Sleep until there is something to do."""
        await self._something_to_do.wait()
        self._something_to_do.clear()

    def _failure(self, choices: Sequence[Choice]) -> InvalidRequest | None:
        """What to tell the client if the engine has failed one of the choices."""
        if self._error is None:
            return None
        if not isinstance(self._error, EngineError):
            raise self._error
        return as_invalid(self._error, admitted=any(choice.text.n_tokens for choice in choices))

    def _usage(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """prompt_tokens counts each prompt once; completion_tokens counts all choices."""
        completion = sum(choice.text.n_tokens for choice in choices)
        return {
            "prompt_tokens": self._n_prompt,
            "completion_tokens": completion,
            "total_tokens": self._n_prompt + completion,
        }


class WholeReply(Reply):
    """One object with all texts. A failure is an error answer."""

    def __init__(self, exchange: Exchange, shape: Shape, plan: Plan, include_usage: bool) -> None:
        super().__init__(exchange, shape, plan, include_usage)
        self._texts: list[list[str]] = [[] for _ in plan.choices]

    def show(self, choice: Choice, text: str) -> None:
        self._texts[choice.index].append(text)
        if choice.over:
            self._n_running -= 1
            if not self._n_running:
                self._something_to_do.set()

    async def send(self, choices: Sequence[Choice]) -> None:
        await self._work()
        if (failure := self._failure(choices)) is not None:
            await self._exchange.send_error(failure)
            return
        texts = [("".join(parts), choice.finish_reason) for parts, choice in zip(self._texts, choices, strict=True)]
        await self._exchange.send_json(200, self._shape.answer(texts, self._usage(choices)))


class StreamedReply(Reply):
    """Events with the text as it comes.

    Nothing is sent before the first choice has run: a failure until then is an ordinary error answer; one after it is
    one error event, and the end of the stream without `[DONE]`.

    Most events are written by `show`, right where the engine's news arrive. The task begins the answer and ends it,
    and it waits for a client that does not read: what cannot be written at once is kept, and goes out merged.
    """

    def __init__(self, exchange: Exchange, shape: Shape, plan: Plan, include_usage: bool) -> None:
        super().__init__(exchange, shape, plan, include_usage)
        self._kept: dict[Choice, str] = {}

    def show(self, choice: Choice, text: str) -> None:
        self._n_running -= choice.over
        # The last event of all goes out together with the end.
        if self._n_running and not self._kept and self._exchange.may_write:
            self._exchange.write_events(self._frames(choice, text))
        else:
            self._kept[choice] = self._kept.get(choice, "") + text
            self._something_to_do.set()

    async def send(self, choices: Sequence[Choice]) -> None:
        while True:
            await self._work()
            failure = self._failure(choices)
            if failure is not None and not self._exchange.started:
                await self._exchange.send_error(failure)
                return
            if not self._exchange.started:
                await self._exchange.start_events()
            frames = b"".join(self._frames(choice, text) for choice, text in self._kept.items())
            self._kept.clear()
            if failure is not None:
                error = encode_json(error_object(failure.status, failure.message, failure.code))
                await self._exchange.end_events(frames + b"data: " + error + b"\n\n")
                return
            if not self._n_running:
                usage = self._shape.usage_frame(self._usage(choices)).encode() if self._include_usage else b""
                await self._exchange.end_events(frames + usage + DONE)
                return
            await self._exchange.send_events(frames)

    def _frames(self, choice: Choice, text: str) -> bytes:
        return self._shape.frames(choice.index, text, choice.finish_reason).encode()
