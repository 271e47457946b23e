"""Answering with generated text: as one object or as events, for any number of choices."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from orcaserve.core import Request, TokenLogprobs
from orcaserve.core.errors import EngineError, InvalidRequest
from orcaserve.serving.http import Exchange, encode_json, error_object
from orcaserve.serving.logprobs import LogprobsStyle, PromptLogprobs
from orcaserve.serving.marked_text import MarkedTextStream, Taken
from orcaserve.serving.params import StreamOptions
from orcaserve.serving.service import Choice, Origin, Plan, Service, as_invalid
from orcaserve.serving.terms import caller_of, name_of

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Read:
    """What has come of a choice in one go. columns: of its log-probabilities, None if there are none. prompt: those of
    its prompt, likewise."""

    columns: tuple[str, ...] | None
    ids: Sequence[int]
    first: bool
    prompt: Sequence[TokenLogprobs] | None = None


@dataclass(frozen=True, slots=True)
class Extras:
    """What stands beside the text of a choice, as JSON. logprobs: the value of that member; members: of the choice,
    outer: of the whole event or answer, a comma before each."""

    logprobs: str = "null"
    members: str = ""
    outer: str = ""


NOTHING = Extras()


class Shape(ABC):
    """How an endpoint writes its answers. `quote`d text is ASCII, so no client can split it in the wrong place.

    kind, event_kind: the `object` of a whole answer and of an event. options: whether events carry `usage`, null in all
    but the last; or that of the moment. style: how log-probabilities are written, if they were asked for; return_ids:
    whether token ids are; prompt_style: how a prompt's log-probabilities are. What is told of a prompt stands beside
    the choices, or in each.
    """

    kind: str
    event_kind: str
    prompt_outside = False

    def __init__(
        self,
        answer_id: str,
        model: str,
        options: StreamOptions,
        style: LogprobsStyle | None = None,
        return_ids: bool = False,
        prompt_style: PromptLogprobs | None = None,
    ) -> None:
        self._created = int(time.time())
        # The constant parts of every event, around its list of choices.
        head = f'"created":{self._created},"model":{quote(model)},"choices":['
        self._open = f'data: {{"id":{quote(answer_id)},"object":"{self.event_kind}",{head}'
        self._open_whole = f'{{"id":{quote(answer_id)},"object":"{self.kind}",{head}'
        self._close = ',"usage":null}\n\n' if options.include_usage else "}\n\n"
        self._style = style
        self._return_ids = return_ids
        self._prompt_style = prompt_style
        self.usage_now: Callable[[], dict[str, Any]] | None = None  # what events are to tell

    @abstractmethod
    def frames(self, index: int, text: str, finish_reason: str | None, extras: Extras = NOTHING) -> str:
        """Events for new text of a choice, and for its end if there is a finish reason."""

    @abstractmethod
    def choice(self, text: str) -> dict[str, Any]:
        """The text of a choice in a whole answer, without what all choices have."""

    def told(self, text: str, finish_reason: str | None) -> tuple[dict[str, Any], str | None]:
        """The same, and why the choice ended, as the endpoint's clients know it."""
        return self.choice(text), finish_reason

    def frame(self, index: int, content: str, finish_reason: str | None, extras: Extras = NOTHING) -> str:
        """One event for one choice; content: its JSON members that are the endpoint's own."""
        reason = f'"{finish_reason}"' if finish_reason else "null"
        close = self._close if self.usage_now is None else f',"usage":{_json(self.usage_now())}}}\n\n'
        return (
            f'{self._open}{{"index":{index},{content},"logprobs":{extras.logprobs},"finish_reason":{reason}'
            f"{extras.members}}}]{extras.outer}{close}"
        )

    def usage_frame(self, usage: dict[str, Any]) -> str:
        return f'{self._open}],"usage":{_json(usage)}}}\n\n'

    def answer(self, choices: Sequence[tuple[str, str | None, Extras]], usage: dict[str, Any]) -> bytes:
        """The whole answer; choices: text, finish reason and all else of each, in order."""
        written = []
        for index, (text, reason, extras) in enumerate(choices):
            members, reason = self.told(text, reason)
            content = _json(members)[1:-1]
            written.append(
                f'{{"index":{index},{content},"logprobs":{extras.logprobs},"finish_reason":{_json(reason)}'
                f"{extras.members}}}"
            )
        outer = choices[0][2].outer if choices else ""
        return f'{self._open_whole}{",".join(written)}],"usage":{_json(usage)}{outer}}}'.encode()

    def read(self, taken: Taken) -> Read:
        """Written as far as it can be before more comes."""
        columns = self._style.members(taken.marks) if self._style is not None and taken.marks else None
        return Read(columns, taken.ids if self._return_ids else (), taken.first, taken.prompt)

    def written(self, parts: Sequence[Read], request: Request) -> Extras:
        """parts: in order, what has come of a choice."""
        columns = [part.columns for part in parts if part.columns is not None]
        logprobs = self._style.value(columns) if self._style is not None and columns else "null"
        members = of_prompt = ""
        if self._return_ids:
            members = f',"token_ids":{_json([token for part in parts for token in part.ids])}'
            if any(part.first for part in parts):
                of_prompt = f',"prompt_token_ids":{_json(list(request.input_ids))}'
        if self._prompt_style is not None:
            for told in (part.prompt for part in parts if part.prompt is not None):
                of_prompt += f',"prompt_logprobs":{self._prompt_style.value(request.input_ids, told)}'
        if logprobs == "null" and not members and not of_prompt:
            return NOTHING
        return Extras(logprobs, members, of_prompt) if self.prompt_outside else Extras(logprobs, members + of_prompt)


async def run_plan(exchange: Exchange, service: Service, plan: Plan, shape: Shape, options: StreamOptions) -> None:
    """Run the choices and answer with their texts, the way the client asked for them.

    Whatever ends this, no choice is left running; that the client left does it within one iteration.
    """
    await service.compile_grammars(plan)
    kind = StreamedReply if options.stream else WholeReply
    reply = kind(exchange, shape, plan, options)
    origin = Origin(exchange.id, exchange.path, name_of(exchange, plan.choices[0][0].terms))
    choices = service.start(plan, exchange.arrival, reply, origin, caller_of(exchange))
    exchange.account.n_prompt = plan.n_prompt
    exchange.account.choices += choices
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

    def __init__(self, exchange: Exchange, shape: Shape, plan: Plan, options: StreamOptions) -> None:
        self._exchange = exchange
        self._shape = shape
        self._plan = plan
        self._include_usage = options.include_usage
        if options.continuous_usage:
            shape.usage_now = self._usage
        self._n_running = len(plan.choices)
        self._error: Exception | None = None
        self._something_to_do = asyncio.Event()
        self._choices: Sequence[Choice] = ()

    @abstractmethod
    def show(self, choice: Choice, text: str) -> None:
        """See Audience."""

    @abstractmethod
    async def send(self, choices: Sequence[Choice]) -> None:
        """Answer, until all choices are over. A mistake of ours in one of them is raised here, and InvalidRequest if
        the engine has failed one of them before anything was sent."""

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

    def _n_cached(self) -> int:
        prompts = {id(choice.request.input_ids): choice for choice in reversed(self._choices)}  # all share their ids
        return sum(choice.life.n_cached for choice in prompts.values())

    def _usage(self) -> dict[str, Any]:
        """prompt_tokens counts each prompt once, and cached_tokens what its first choice found; completion_tokens
        counts all choices, also those not in the answer."""
        prompt, completion = self._plan.n_prompt, sum(text.n_tokens for _, text in self._plan.choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": self._n_cached()},
            "completion_tokens_details": {
                "accepted_prediction_tokens": 0,
                "audio_tokens": 0,
                "reasoning_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }


class WholeReply(Reply):
    """One object with all texts. A failure is an error answer."""

    def __init__(self, exchange: Exchange, shape: Shape, plan: Plan, options: StreamOptions) -> None:
        super().__init__(exchange, shape, plan, options)
        self._texts: list[list[str]] = [[] for _ in plan.choices]
        self._reads: list[list[Read]] = [[] for _ in plan.choices]

    def show(self, choice: Choice, text: str) -> None:
        self._texts[choice.index].append(text)
        if isinstance(choice.text, MarkedTextStream):
            self._reads[choice.index].append(self._shape.read(choice.text.take()))
        if choice.over:
            self._n_running -= 1
            if not self._n_running:
                self._something_to_do.set()

    async def send(self, choices: Sequence[Choice]) -> None:
        self._choices = choices
        await self._work()
        if (failure := self._failure(choices)) is not None:
            raise failure
        told = [
            (
                "".join(self._texts[choice.index]),
                choice.finish_reason,
                self._shape.written(self._reads[choice.index], choice.request),
            )
            for choice in best_choices(choices, self._plan)
        ]
        await self._exchange.send_bytes(200, self._shape.answer(told, self._usage()), b"application/json")


class StreamedReply(Reply):
    """Events with the text as it comes.

    Nothing is sent before the first choice has run: a failure until then is an ordinary error answer; one after it is
    one error event, and the end of the stream without `[DONE]`.

    Most events are written by `show`, right where the engine's news arrive. The task begins the answer and ends it,
    and it waits for a client that does not read: what cannot be written at once is kept, and goes out merged.
    """

    def __init__(self, exchange: Exchange, shape: Shape, plan: Plan, options: StreamOptions) -> None:
        super().__init__(exchange, shape, plan, options)
        self._kept: dict[Choice, str] = {}

    def show(self, choice: Choice, text: str) -> None:
        self._n_running -= choice.over
        # The last event of all goes out together with the end.
        if self._n_running and not self._kept and self._exchange.may_write:
            if frames := self._frames(choice, text):  # none of a text that is held back
                self._exchange.write_events(frames)
        else:
            self._kept[choice] = self._kept.get(choice, "") + text
            self._something_to_do.set()

    async def send(self, choices: Sequence[Choice]) -> None:
        self._choices = choices
        while True:
            await self._work()
            failure = self._failure(choices)
            if failure is not None and not self._exchange.started:
                raise failure
            if not self._exchange.started:
                await self._exchange.start_events()
            frames = b"".join(self._frames(choice, text) for choice, text in self._kept.items())
            self._kept.clear()
            if failure is not None:
                self._exchange.account.code = failure.code or str(failure.status)
                self._exchange.count_failure(failure.code)
                error = encode_json(error_object(failure.status, failure.message, failure.code))
                await self._exchange.end_events(frames + b"data: " + error + b"\n\n")
                return
            if not self._n_running:
                usage = self._shape.usage_frame(self._usage()).encode() if self._include_usage else b""
                await self._exchange.end_events(frames + usage + DONE)
                return
            if frames:
                await self._exchange.send_events(frames)

    def _frames(self, choice: Choice, text: str) -> bytes:
        extras = NOTHING
        if isinstance(choice.text, MarkedTextStream):
            extras = self._shape.written([self._shape.read(choice.text.take())], choice.request)
        return self._shape.frames(choice.index, text, choice.finish_reason, extras).encode()


def best_choices(choices: Sequence[Choice], plan: Plan) -> Sequence[Choice]:
    """Those of the answer: all, or the best of each prompt, best first; of equals the first."""
    if not plan.n_kept:
        return choices
    kept: list[Choice] = []
    for begin in range(0, len(choices), plan.n_each):
        each = sorted(choices[begin : begin + plan.n_each], key=lambda choice: -_mean_logprob(choice))
        kept += each[: plan.n_kept]
    return kept


def _mean_logprob(choice: Choice) -> float:
    assert isinstance(choice.text, MarkedTextStream), "the plan asks for what choices are compared by"
    return choice.text.mean_logprob


def _json(value: Any) -> str:
    return encode_json(value).decode()
