"""Service: a loaded model behind the endpoint. Holds what handlers share, and runs choices on the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Protocol

from orcaserve.config import AdaptersConfig, ServingConfig
from orcaserve.core import (
    AdapterSource,
    EngineError,
    EngineFacts,
    EngineStatus,
    FinishReason,
    Grammar,
    InvalidRequest,
    IterationReport,
    LiveRequests,
    Pooling,
    Progress,
    Request,
    SamplingParams,
    Terms,
    fan_out,
)
from orcaserve.core.errors import CRASHED_TWICE, ENGINE_LOST, SERVER_STOPPING, TIMED_OUT, TOO_LATE
from orcaserve.core.terms import USUAL
from orcaserve.serving.adapters import Adapters
from orcaserve.serving.chat_template import ChatTemplate
from orcaserve.serving.conversation import ChatEncoder, RequestTemplates
from orcaserve.serving.door import Bounds, Door
from orcaserve.serving.fields import MAX_LOGPROBS, MAX_WORK
from orcaserve.serving.grammar_checker import GrammarChecker
from orcaserve.serving.marked_text import TextOptions
from orcaserve.serving.metrics import Metrics
from orcaserve.serving.observing.life import Life
from orcaserve.serving.pace import Pace
from orcaserve.serving.schedule_watch import ScheduleWatch
from orcaserve.serving.terms import Caller
from orcaserve.serving.text_stream import TextStream
from orcaserve.text.tokenizer import Tokenizer

ABORTED = "abort"  # the finish reason of a choice that was cancelled
LATE = "late"  # in the count of ends: one that was not begun, for it could not make its deadline any more
PLAIN_TEXT = TextOptions()


class Tokens(Protocol):
    """News of one request; a TokenStream of the control plane."""

    def listen(self, take: Callable[[Progress], None]) -> None: ...


class Replica(Protocol):
    """One engine, as far as it is looked at alone."""

    closed: asyncio.Event
    on_report: Callable[[IterationReport], None] | None
    on_restart: Callable[[], None]

    @property
    def present(self) -> bool: ...
    @property
    def status(self) -> EngineStatus: ...
    def watch(self, listener: Callable[[bytes], None] | None) -> None: ...
    async def describe(self) -> LiveRequests: ...


class Client(Protocol):
    """What the endpoint needs of the engine: a Supervisor, or Replicas."""

    closed: asyncio.Event

    @property
    def replicas(self) -> Sequence[Replica]: ...
    @property
    def facts(self) -> EngineFacts: ...
    @property
    def last_report(self) -> float: ...
    @property
    def present(self) -> bool: ...
    @property
    def n_open(self) -> int: ...
    def submit(self, request: Request) -> Tokens: ...
    def cancel(self, request_id: int) -> None: ...
    @property
    def n_adapters(self) -> int: ...
    async def load_adapter(self, adapter: AdapterSource) -> None: ...
    def unload_adapter(self, number: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """The choices of a checked request, not yet handed to the engine; n_prompt: tokens of its prompts.

    n_kept, n_each: of the n_each choices of every prompt, the n_kept with the highest mean log-probability are the
    answer, best first; n_each 0: all are, as they come.
    grammars: of its choices, each with the field that asks for it; they have to be compiled once before it is begun.
    """

    choices: Sequence[tuple[Request, TextStream]]
    n_prompt: int
    n_kept: int = 0
    n_each: int = 0
    grammars: Mapping[Grammar, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a choice comes from. id: of the client's request; endpoint: the path that it was sent to.

    name: whose tokens they are in the metrics; empty if its client has no name but an address.
    """

    id: str
    endpoint: str
    name: str = ""


class Audience(Protocol):
    """Whom choices tell their news, on the event loop. Neither call waits for anything."""

    def show(self, choice: Choice, text: str) -> None:
        """New text, at most once per turn of the engine. The last time the choice is over, and there may be no text."""

    def fail(self, error: Exception) -> None:
        """A choice will not come to its end: EngineError if its request failed, else a mistake of ours."""


class Choice:
    """One request under way: its tokens as they come, and the text they make.

    over: nothing more is said of it: it has come to its end, has failed, or was cancelled. life: what was when.
    embedding: its pooled hidden states, if it asked for them and has come to its end.
    """

    def __init__(
        self,
        service: Service,
        index: int,
        request: Request,
        text: TextStream,
        arrival: float,
        audience: Audience,
        origin: Origin,
    ) -> None:
        self.index = index
        self.request = request
        self.text = text
        self.over = False
        self.embedding: bytes | None = None
        self.origin = origin
        self._service = service
        self._audience = audience
        self.life = Life(arrival, time.monotonic())
        self._tally = service.metrics.clients.of(origin.name)
        request.arrival = arrival  # what deadlines count from, wherever the request goes
        stream = service.client.submit(request)
        service.metrics.requests_started += 1
        self._tally.n_open += 1
        service.live[request.id] = self
        if not request.terms.background:
            service.door.enter(request)
        stream.listen(self._take)

    @property
    def n_output(self) -> int:
        """Tokens it has."""
        return self.text.n_tokens

    @property
    def finish_reason(self) -> str | None:
        """For the client, once the choice has come to its end."""
        reason = self.text.finish_reason
        return None if reason is None else ABORTED if reason is FinishReason.CANCELLED else reason.value

    def stop(self) -> None:
        """End it with the text it has by now: somebody asked for that, and its client still listens. Idempotent."""
        if self.over:
            return
        text = self.text.push(None, FinishReason.CANCELLED)
        self._end(ABORTED)
        self._service.cancel(self.request.id)
        self._audience.show(self, text)

    def cancel(self) -> None:
        """Nobody waits for this choice any more. Idempotent."""
        if not self.over:
            self._end(ABORTED)
            self._service.cancel(self.request.id)

    def _take(self, news: Progress) -> None:
        """What fails here is this choice's failure alone: others are told their news after it."""
        if self.over:
            return
        self._service.door.begun(self.request.id)
        try:
            text = self._read(news)
            if text or self.over:
                self._audience.show(self, text)
        except EngineError as error:
            self._end(LATE if str(error) in (TOO_LATE, TIMED_OUT) else "error")
            self._audience.fail(error)
        except Exception as error:
            self.cancel()
            self._audience.fail(error)

    def _read(self, news: Progress) -> str:
        """New text. Raises EngineError if the request has failed."""
        if news.finish_reason in (FinishReason.ERROR, FinishReason.CANCELLED):
            raise EngineError(news.error or ENGINE_LOST)  # CANCELLED without our asking: the engine is being stopped
        life = self.life
        if news.began is not None and life.begun is None:
            life.begun = min(life.submitted + news.began.waited, time.monotonic())
            life.n_cached = news.began.n_cached
            self._service.metrics.on_begun(self.request, life, self._tally)
        if news.token is not None:
            now, metrics = time.monotonic(), self._service.metrics
            metrics.generation_tokens += 1
            self._tally.output += 1
            if self.text.n_tokens:
                metrics.between_tokens.observe(now - life.last_token)
            else:
                metrics.first_token.observe(now - life.arrival)
                life.first_token = now
            life.last_token = now
        self.embedding = news.embedding
        text = self.text.push(news.token, news.finish_reason, news.logprobs)
        if self.text.finish_reason is not None:
            self._end(self.text.finish_reason.value)
            if news.finish_reason is None:  # a stop string, which only we can see
                self._service.cancel(self.request.id)
        return text

    def _end(self, reason: str) -> None:
        self.over = True
        self.life.ended, self.life.reason = time.monotonic(), reason
        self._service.live.pop(self.request.id, None)
        self._tally.n_open -= 1
        door = self._service.door
        door.left(self.request.id)
        if reason in ("stop", "length") and not self.request.params.ignore_eos:
            door.lengths.note(self.text.n_tokens, by_itself=reason == "stop")
        self._service.metrics.on_end(self.request, self.life, self.text.n_tokens)


class Service:
    """The served model. Everything here runs on the event loop but `plan`.

    name: what clients call the model. adapters: what else they may call by a name. serving: settings, of which those
    are looked at here that concern requests.
    door: who may come in.
    """

    def __init__(
        self,
        client: Client,
        tokenizer: Tokenizer,
        name: str,
        serving: ServingConfig,
        pooling: Pooling | str = Pooling.LAST,
        adapters: AdaptersConfig | None = None,
    ) -> None:
        """pooling: how embeddings are made; or why they are not."""
        self.client = client
        self.tokenizer = tokenizer
        self.name = name
        self.adapters = Adapters(name, adapters or AdaptersConfig(), client)
        self.created = int(time.time())
        self.facts = client.facts
        source = tokenizer.chat_template
        self.template = None if source is None else ChatTemplate(source, tokenizer.special_tokens)
        self._encoder = None if self.template is None else ChatEncoder(self.template, tokenizer)
        self._tool_encoder = self._encoder
        if tokenizer.tool_template is not None:
            tool_template = ChatTemplate(tokenizer.tool_template, tokenizer.special_tokens)
            self._tool_encoder = ChatEncoder(tool_template, tokenizer)
        self._request_templates = RequestTemplates(tokenizer) if serving.trust_request_chat_template else None
        self.call_parser = serving.tool_call_parser
        self._pooling = pooling
        self.stall_timeout = serving.stall_timeout
        self.metrics = Metrics(name, self.facts, client.replicas)
        for number, replica in enumerate(client.replicas):
            replica.on_report = partial(self._on_report, number)
            replica.on_restart = partial(self.metrics.on_restart, number)
        self._grammars = GrammarChecker(lambda: tokenizer.vocabulary(self.facts.vocab_size, self.facts.eos_ids))
        self.live: dict[int, Choice] = {}  # by the numbers of their requests
        self.schedules = [ScheduleWatch(replica) for replica in client.replicas]
        n_replicas = len(client.replicas)
        self._pace = Pace(n_replicas, self.facts.n_workers)
        self.door = _door(self.facts, n_replicas, serving, self._pace)
        self._request_ids = count(1)
        self._busy_since = time.monotonic()

    def default_max_tokens(self, n_input: int, at_most: int | None = None) -> int:
        """What is left for a prompt, `at_most` so many; 1 if nothing is, so that the check names the numbers."""
        left = self.facts.most_output(n_input)
        return max(1, left if at_most is None else min(left, at_most))

    def chat_encoder(self, source: object = None, tools: bool = False) -> ChatEncoder:
        """What turns chats, with tools or without, into ids. From any thread.

        source: a chat template in place of the model's.

        Raises InvalidRequest if there is none, or none may be brought.
        """
        if source is not None:
            if self._request_templates is None:
                message = "chat_template is taken only by a server that was started with --trust-request-chat-template"
                raise InvalidRequest("chat_template", message, code="unsupported_parameter")
            return self._request_templates.encoder(source)
        encoder = self._tool_encoder if tools else self._encoder
        if self.template is None or encoder is None:
            message = "this model has no chat template: use /v1/completions"
            raise InvalidRequest("messages", message, "no_chat_template")
        return encoder

    def require_pooling(self) -> Pooling:
        """How embeddings are made. Raises InvalidRequest if this model makes none."""
        pooling = self._pooling if self.facts.embedding_size else "this model has no hidden states to pool"
        if isinstance(pooling, str):
            message = f"{self.name} makes no embeddings: {pooling}"
            raise InvalidRequest("model", message, code="embeddings_not_supported")
        return pooling

    def plan(
        self,
        prompts: Sequence[tuple[list[int], SamplingParams]],
        options: TextOptions = PLAIN_TEXT,
        n_kept: int = 0,
        grammar_field: str | None = None,
        terms: Terms = USUAL,
        adapter: int = 0,
    ) -> Plan:
        """The requests of all prompts: choice prompt_index * n + i. From any thread. n_kept: see Plan; 0: all.

        grammar_field: the field that asks for their grammar, if they have one.

        Raises InvalidRequest for what the model cannot run, or what would cost too much beside others.
        """
        n_choices = sum(params.n for _, params in prompts)
        # One choice is bounded by the context and the limits of its fields.
        if n_choices > 1 and sum(_work(ids, params) for ids, params in prompts) > MAX_WORK:
            name = "n" if n_choices > len(prompts) else "prompt"
            what = "prompt tokens + logit_bias entries + stop ids + stop characters + characters of a grammar"
            raise InvalidRequest(name, f"choices x ({what}) must be at most {MAX_WORK}")
        if sum(_n_logprobs(ids, params) for ids, params in prompts) > MAX_LOGPROBS:
            name = "best_of" if n_kept else "logprobs"
            if all(params.logprobs is None for _, params in prompts):
                name = "prompt_logprobs"
            message = f"{name}: choices x tokens x (best ones of each + 1) must be at most {MAX_LOGPROBS}"
            raise InvalidRequest(name, message)
        grammars = {params.grammar: grammar_field for _, params in prompts if params.grammar is not None}
        if grammars and not self.facts.eos_ids:
            raise InvalidRequest(grammar_field, "this model has no token that ends a text, so it follows no grammar")
        choices: list[tuple[Request, TextStream]] = []
        for ids, params in prompts:
            requests = fan_out(self._request_ids, ids, params, self.facts, terms, adapter)
            before = ids if self.facts.source is None else ()  # what an encoder reads is no beginning of the text
            new_text = options.streams(self.tokenizer, before, params)
            choices += [(request, new_text()) for request in requests]
        n_each = prompts[0][1].n if n_kept else 0
        return Plan(choices, sum(len(ids) for ids, _ in prompts), n_kept, n_each, grammars)

    async def compile_grammars(self, plan: Plan) -> None:
        """Raises InvalidRequest naming the field if one of them cannot be compiled."""
        for grammar, name in plan.grammars.items():
            await self._grammars.check(grammar, name)

    def close(self) -> None:
        """Nothing is served any more."""
        self._grammars.close()

    def start(self, plan: Plan, arrival: float, audience: Audience, origin: Origin, caller: Caller) -> list[Choice]:
        """Hand all choices to the engine. Raises EngineError if it is gone, and Overloaded if they may not come in now;
        then none of them is.
        """
        requests = [request for request, _ in plan.choices]
        self.adapters.check(requests[0].adapter)
        if not requests[0].terms.background:
            self.door.check(requests, time.monotonic() - arrival, caller)
        if not self.client.n_open:
            self._busy_since = time.monotonic()
        choices: list[Choice] = []
        try:
            for index, (request, text) in enumerate(plan.choices):
                choices.append(Choice(self, index, request, text, arrival, audience, origin))
        except BaseException:
            for choice in choices:
                choice.cancel()
            raise
        self.metrics.prompt_tokens += plan.n_prompt
        return choices

    def _on_report(self, replica: int, report: IterationReport) -> None:
        self.metrics.on_report(replica, report)
        self._pace.on_report(replica, report.status, time.monotonic())

    def cancel(self, request_id: int) -> None:
        if not self.client.closed.is_set():
            self.client.cancel(request_id)

    def why_not_ready(self) -> str | None:
        """None, or why requests should go elsewhere: also while they only wait for another engine."""
        reason = self.why_not_healthy()
        return "the engine is being replaced" if reason is None and not self.client.present else reason

    @property
    def health(self) -> dict[str, object]:
        """What is said of a healthy service: also of each replica, if there are several."""
        said: dict[str, object] = {"status": "ready" if self.client.present else "recovering"}
        replicas = self.client.replicas
        if len(replicas) > 1:
            said["replicas"] = [
                "given up" if replica.closed.is_set() else "ready" if replica.present else "recovering"
                for replica in replicas
            ]
        return said

    def why_not_healthy(self) -> str | None:
        """None, or what is wrong. Reads times only: it never asks the engine anything."""
        if self.client.closed.is_set():
            return "the engine is gone"
        waiting_since = max(self.client.last_report, self._busy_since)
        if self.client.n_open and time.monotonic() - waiting_since > self.stall_timeout:
            return "the engine makes no progress"
        return None


def _door(facts: EngineFacts, n_replicas: int, serving: ServingConfig, pace: Pace) -> Door:
    usual = Bounds.usual(facts, n_replicas)
    n_requests, n_tokens = serving.max_queued_reqs, serving.max_queued_tokens
    bounds = Bounds(
        usual.n_requests if n_requests is None else n_requests, usual.n_tokens if n_tokens is None else n_tokens
    )
    return Door(facts.max_bs * facts.n_workers * n_replicas, facts.n_slots * n_replicas, bounds, pace)


def _work(ids: Sequence[int], params: SamplingParams) -> int:
    stops = len(params.stop_token_ids) + sum(map(len, params.stop))
    grammar = 0 if params.grammar is None else len(params.grammar.text)
    return params.n * (len(ids) + len(params.logit_bias) + stops + grammar)


def _n_logprobs(ids: Sequence[int], params: SamplingParams) -> int:
    """Log-probabilities that a prompt's choices may be told at most."""
    output = 0 if params.logprobs is None else params.max_tokens * (1 + params.logprobs)
    prompt = 0 if params.prompt_logprobs is None else len(ids) * (1 + params.prompt_logprobs)
    return params.n * (output + prompt)


def as_invalid(error: EngineError, admitted: bool) -> InvalidRequest:
    """A failure of the engine as an answer: 503 if the request had not begun, so that a client may try again."""
    if str(error) == SERVER_STOPPING:
        return InvalidRequest(None, SERVER_STOPPING, code="stopping", status=503)
    if str(error) in (TOO_LATE, TIMED_OUT):
        return InvalidRequest(None, str(error), code="deadline_exceeded", status=504)
    if str(error) == CRASHED_TWICE:
        return InvalidRequest(None, CRASHED_TWICE, code="engine_crashed", status=500)
    return InvalidRequest(None, str(error), code="engine_error", status=500 if admitted else 503)
