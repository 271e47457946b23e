"""Codec: the one place that knows both the vocabulary (core) and the wire (engine_pb2).

Encoding checks what protobuf would refuse with its own exceptions; decoding trusts nobody, and raises InvalidRequest
for a Submit that is wrong by itself. What depends on the loaded model (vocabulary) is checked by the engine host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from orcaserve.control_plane import engine_pb2 as wire
from orcaserve.control_plane.adapter_codec import encode_adapter
from orcaserve.control_plane.logprobs_codec import decode_logprobs, encode_logprobs, size_of
from orcaserve.core import (
    USUAL,
    AdapterSource,
    Began,
    EngineFacts,
    EngineStatus,
    FinishReason,
    Grammar,
    GrammarKind,
    InvalidRequest,
    IterationReport,
    LiveRequest,
    LiveRequests,
    LiveState,
    Pooling,
    Progress,
    Request,
    SamplingParams,
    SourceFacts,
    Terms,
)
from orcaserve.core.sampling_params import MAX_TOKEN_ID

MAX_REQUEST_ID = 2**63 - 1
MAX_MESSAGE_BYTES = 64 * 2**20  # refused by gRPC on both sides
MAX_TURN_BYTES = MAX_MESSAGE_BYTES // 2  # of the Submits of one ToEngine message, and so of a single Submit
_MAX_UINT32 = 2**32 - 1

_TO_WIRE: dict[FinishReason, wire.FinishReason] = {
    FinishReason.STOP: wire.FINISH_REASON_STOP,
    FinishReason.LENGTH: wire.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: wire.FINISH_REASON_CANCELLED,
    FinishReason.ERROR: wire.FINISH_REASON_ERROR,
}
_FROM_WIRE: dict[int, FinishReason] = {number: reason for reason, number in _TO_WIRE.items()}
_KIND_TO_WIRE: dict[GrammarKind, wire.GrammarKind] = {
    GrammarKind.JSON_SCHEMA: wire.GRAMMAR_KIND_JSON_SCHEMA,
    GrammarKind.REGEX: wire.GRAMMAR_KIND_REGEX,
    GrammarKind.LARK: wire.GRAMMAR_KIND_LARK,
}
_KIND_FROM_WIRE: dict[int, GrammarKind] = {number: kind for kind, number in _KIND_TO_WIRE.items()}
_POOLING_TO_WIRE: dict[Pooling | None, wire.Pooling] = {
    None: wire.POOLING_UNSPECIFIED,
    Pooling.MEAN: wire.POOLING_MEAN,
    Pooling.LAST: wire.POOLING_LAST,
}
_POOLING_FROM_WIRE: dict[int, Pooling | None] = {number: pooling for pooling, number in _POOLING_TO_WIRE.items()}


def encode_submit(request: Request) -> wire.Submit:
    """A new request for the engine. Raises InvalidRequest if an id, or all of them, do not fit the wire."""
    assert 0 <= request.id <= MAX_REQUEST_ID, "request ids are ours to choose"
    _check_ids("prompt", request.input_ids)
    _check_ids("stop_token_ids", request.stop_ids)
    _check_ids("output", request.output)
    submit = wire.Submit(
        request_id=request.id,
        input_ids=request.input_ids,
        stop_ids=sorted(request.stop_ids),
        sampling=encode_sampling(request.params),
        seed=request.seed,
        output_ids=request.output,
        terms=None if request.terms is USUAL else _encode_terms(request.terms),
        adapter=request.adapter,
    )
    if submit.ByteSize() > MAX_TURN_BYTES:
        raise InvalidRequest("prompt", f"the prompt must fit a message of {MAX_TURN_BYTES} bytes")
    return submit


def decode_submit(submit: wire.Submit) -> Request:
    """The request as the engine sees it: one choice, no stop strings. Raises InvalidRequest."""
    if not 0 <= submit.request_id <= MAX_REQUEST_ID:
        raise InvalidRequest(None, "the request id is out of range")
    if not submit.input_ids:
        raise InvalidRequest("prompt", "the prompt must be at least one token")
    _check_ids("prompt", submit.input_ids)
    _check_ids("stop_token_ids", submit.stop_ids)
    _check_ids("output", submit.output_ids)
    if not submit.HasField("sampling"):
        raise InvalidRequest(None, "the sampling settings are missing")
    params = decode_sampling(submit.sampling)
    return Request(
        submit.request_id,
        list(submit.input_ids),
        params,
        frozenset(submit.stop_ids),
        submit.seed,
        output=list(submit.output_ids),
        terms=_decode_terms(submit.terms) if submit.HasField("terms") else USUAL,
        adapter=submit.adapter,
    )


def _encode_terms(terms: Terms) -> wire.Terms:
    return wire.Terms(
        client=terms.client,
        weight=terms.weight,
        priority=terms.priority,
        background=terms.background,
        cache_salt=terms.cache_salt,
        timeout=terms.timeout,
        first_token=terms.first_token,
        between_tokens=terms.between_tokens,
    )


def _decode_terms(terms: wire.Terms) -> Terms:
    """Raises InvalidRequest."""
    return Terms(
        client=terms.client,
        weight=terms.weight or 1.0,
        priority=terms.priority,
        background=terms.background,
        cache_salt=terms.cache_salt,
        timeout=terms.timeout if terms.HasField("timeout") else None,
        first_token=terms.first_token if terms.HasField("first_token") else None,
        between_tokens=terms.between_tokens if terms.HasField("between_tokens") else None,
    )


def encode_sampling(params: SamplingParams) -> wire.Sampling:
    return wire.Sampling(
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias=params.logit_bias,
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
        grammar=None if params.grammar is None else _encode_grammar(params.grammar),
        ignore_eos=params.ignore_eos and params.grammar is not None,
        pooling=encode_pooling(params.pooling),
    )


def decode_sampling(sampling: wire.Sampling) -> SamplingParams:
    """What concerns the engine. Raises InvalidRequest."""
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=dict(sampling.logit_bias),
        logprobs=sampling.logprobs if sampling.HasField("logprobs") else None,
        prompt_logprobs=sampling.prompt_logprobs if sampling.HasField("prompt_logprobs") else None,
        grammar=_decode_grammar(sampling.grammar) if sampling.HasField("grammar") else None,
        ignore_eos=sampling.ignore_eos,
        pooling=decode_pooling(sampling.pooling),
    )


def encode_pooling(pooling: Pooling | None) -> wire.Pooling:
    return _POOLING_TO_WIRE[pooling]


def decode_pooling(number: int) -> Pooling | None:
    """Raises InvalidRequest."""
    if number not in _POOLING_FROM_WIRE:
        raise InvalidRequest("pooling", "the kind of pooling is unknown")
    return _POOLING_FROM_WIRE[number]


def _encode_grammar(grammar: Grammar) -> wire.Grammar:
    return wire.Grammar(kind=_KIND_TO_WIRE[grammar.kind], text=grammar.text)


def _decode_grammar(grammar: wire.Grammar) -> Grammar:
    kind = _KIND_FROM_WIRE.get(grammar.kind)
    if kind is None:
        raise InvalidRequest("grammar", "the kind of the grammar is unknown")
    return Grammar(kind, grammar.text)


def encode_report(report: IterationReport) -> wire.FromEngine:
    """All news of one turn of the engine's loop, as columns."""
    message = wire.FromEngine(report=wire.IterationReport(status=_encode_status(report.status)))
    columns = message.report
    columns.request_ids.extend([progress.request_id for progress in report.progress])
    columns.tokens.extend([0 if progress.token is None else progress.token + 1 for progress in report.progress])
    for row, progress in enumerate(report.progress):
        if progress.finish_reason is not None:
            columns.ended_rows.append(row)
            columns.finish_reasons.append(_TO_WIRE[progress.finish_reason])
            if progress.error is not None:
                columns.errors[row] = progress.error
        if progress.began is not None:
            columns.began[row].waited = progress.began.waited
            columns.began[row].n_cached = progress.began.n_cached
    if report.describes:
        for row, progress in enumerate(report.progress):
            if progress.logprobs is not None:
                encode_logprobs(progress.logprobs, columns.logprobs[row])
            if progress.embedding is not None:
                columns.embeddings[row] = progress.embedding
    return message


def encode_reports(report: IterationReport) -> Iterator[wire.FromEngine]:
    """As encode_report, in several messages if its log-probabilities and embeddings are too much for one."""
    if not report.describes:
        yield encode_report(report)
        return
    begin = size = 0
    for row, progress in enumerate(report.progress):
        own = 0 if progress.logprobs is None else size_of(progress.logprobs)
        own += 0 if progress.embedding is None else len(progress.embedding)
        if row > begin and size + own > MAX_TURN_BYTES:
            yield encode_report(IterationReport(report.progress[begin:row], report.status, True))
            begin = row
            size = 0
        size += own
    yield encode_report(IterationReport(report.progress[begin:], report.status, True))


def decode_progress(report: wire.IterationReport) -> list[Progress]:
    """The rows of a report. Raises ValueError if its columns disagree."""
    rows = [
        Progress(request_id, token - 1 if token else None)
        for request_id, token in zip(report.request_ids, report.tokens, strict=True)
    ]
    errors = report.errors
    for row, reason in zip(report.ended_rows, report.finish_reasons, strict=True):
        if row >= len(rows):
            raise ValueError("a row ended that is not there")
        error = errors[row] if row in errors else None  # noqa: SIM401  (reading a map of protobuf adds to it)
        news = rows[row]
        rows[row] = Progress(news.request_id, news.token, _FROM_WIRE.get(reason, FinishReason.ERROR), error)
    for row, logprobs in report.logprobs.items():
        if row >= len(rows):
            raise ValueError("there are log-probabilities of a row that is not there")
        rows[row].logprobs = decode_logprobs(logprobs)
    for row, began in report.began.items():
        if row >= len(rows):
            raise ValueError("a row has begun that is not there")
        rows[row].began = Began(began.waited, began.n_cached)
    for row, embedding in report.embeddings.items():
        if row >= len(rows):
            raise ValueError("there is an embedding of a row that is not there")
        rows[row].embedding = embedding
    return rows


def encode_facts(facts: EngineFacts) -> wire.FromEngine:
    """The first message of the engine."""
    return wire.FromEngine(
        facts=wire.Facts(
            model_name=facts.model_name,
            vocab_size=facts.vocab_size,
            context_length=facts.context_length,
            n_slots=facts.n_slots,
            max_bs=min(facts.max_bs, _MAX_UINT32),
            n_workers=facts.n_workers,
            eos_ids=sorted(facts.eos_ids),
            embedding_size=facts.embedding_size,
            source=None if facts.source is None else _encode_source(facts.source),
            window=facts.window or 0,
        )
    )


def _encode_source(source: SourceFacts) -> wire.Source:
    return wire.Source(longest=source.longest, start=source.start, page_size=source.page_size)


def decode_facts(facts: wire.Facts) -> EngineFacts:
    return EngineFacts(
        model_name=facts.model_name,
        vocab_size=facts.vocab_size,
        context_length=facts.context_length,
        n_slots=facts.n_slots,
        max_bs=facts.max_bs,
        n_workers=facts.n_workers,
        eos_ids=frozenset(facts.eos_ids),
        embedding_size=facts.embedding_size,
        source=_decode_source(facts.source) if facts.HasField("source") else None,
        window=facts.window or None,
    )


def _decode_source(source: wire.Source) -> SourceFacts:
    return SourceFacts(source.longest, source.start, source.page_size)


def encode_failure(message: str) -> wire.FromEngine:
    """The last message of an engine that gives up."""
    return wire.FromEngine(failure=wire.Failure(message=message))


def encode_heartbeat() -> wire.FromEngine:
    """What the engine says when it has nothing to say."""
    return wire.FromEngine(heartbeat=wire.Heartbeat())


def encode_lines(lines: bytes) -> wire.FromEngine:
    """Whole lines of a schedule log."""
    return wire.FromEngine(schedule_lines=lines)


def encode_live(question: int, live: LiveRequests) -> wire.FromEngine:
    """The answer to a question."""
    requests = [
        wire.LiveRequest(
            request_id=each.id,
            state=each.state.value,
            age=each.age,
            n_input=each.n_input,
            n_output=each.n_output,
            n_reserved=each.n_reserved,
            n_used=each.n_used,
            why_waiting=each.why_waiting,
        )
        for each in live.requests
    ]
    return wire.FromEngine(
        live=wire.LiveRequests(question=question, requests=requests, n_left_out=min(live.n_left_out, _MAX_UINT32))
    )


def decode_live(live: wire.LiveRequests) -> LiveRequests:
    """Raises ValueError for a state that is none."""
    requests = [
        LiveRequest(
            each.request_id,
            LiveState(each.state),
            each.age,
            each.n_input,
            each.n_output,
            each.n_reserved,
            each.n_used,
            each.why_waiting,
        )
        for each in live.requests
    ]
    return LiveRequests(requests, live.n_left_out)


def encode_turn(
    submits: Sequence[wire.Submit],
    cancels: Sequence[int],
    watch: bool | None = None,
    question: int = 0,
    loads: Sequence[AdapterSource] = (),
    unloads: Sequence[int] = (),
) -> wire.ToEngine:
    """What the endpoint had to say since its last message. watch: None: as before; question: 0 for none. loads,
    unloads: of adapters."""
    adapters = map(encode_adapter, loads)
    return wire.ToEngine(
        submits=submits, cancels=cancels, watch=watch, question=question, loads=adapters, unloads=unloads
    )


def _encode_status(status: EngineStatus) -> wire.Status:
    return wire.Status(
        iteration=status.iteration,
        n_running=status.n_running,
        n_waiting=status.n_waiting,
        n_live=status.n_live,
        n_reserved=status.n_reserved,
        n_used=status.n_used,
        batch_tokens=status.batch_tokens,
        batch_initiations=status.batch_initiations,
        iteration_seconds=status.iteration_seconds,
        scheduler_seconds=status.scheduler_seconds,
        n_preempted=status.n_preempted,
        n_recomputed=status.n_recomputed,
        n_waiting_tokens=status.n_waiting_tokens,
        n_cached=status.n_cached,
        n_kept=status.n_kept,
        n_late=status.n_late,
    )


def decode_status(status: wire.Status) -> EngineStatus:
    return EngineStatus(
        iteration=status.iteration,
        n_running=status.n_running,
        n_waiting=status.n_waiting,
        n_live=status.n_live,
        n_reserved=status.n_reserved,
        n_used=status.n_used,
        batch_tokens=status.batch_tokens,
        batch_initiations=status.batch_initiations,
        iteration_seconds=status.iteration_seconds,
        scheduler_seconds=status.scheduler_seconds,
        n_preempted=status.n_preempted,
        n_recomputed=status.n_recomputed,
        n_waiting_tokens=status.n_waiting_tokens,
        n_cached=status.n_cached,
        n_kept=status.n_kept,
        n_late=status.n_late,
    )


def _check_ids(field: str, ids: Iterable[int]) -> None:
    """Every id in 0 .. 2^31 - 1. The two bounds of the whole say the same of each id, and are found without a loop."""
    ids = ids if isinstance(ids, Sequence) else list(ids)
    if len(ids) > 0 and not (min(ids) >= 0 and max(ids) <= MAX_TOKEN_ID):
        raise InvalidRequest(field, f"{field} holds a token id outside 0..{MAX_TOKEN_ID}")
