"""Codec of the messages between engine master and workers: core's types to worker_pb2 and back.

Both sides are ours and of the same version, which the master checks; decoding still raises ValueError for columns that
disagree, for a mistake of our own is better seen here than in the kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import orcaserve.core as core
from orcaserve.control_plane import engine_pb2 as engine_wire
from orcaserve.control_plane import worker_pb2 as wire
from orcaserve.control_plane.codec import (
    MAX_TURN_BYTES,
    decode_pooling,
    decode_sampling,
    encode_pooling,
    encode_sampling,
)
from orcaserve.control_plane.logprobs_codec import decode_logprobs, encode_logprobs, size_of
from orcaserve.core import (
    Batch,
    BatchEntry,
    ConfigError,
    EngineError,
    Increment,
    IterationResult,
    Kept,
    Logprobs,
    ModelError,
    OrcaServeError,
    Prefix,
    Scoring,
)
from orcaserve.core.beats import Beat
from orcaserve.core.request import Phase
from orcaserve.core.spans import IterationSpans, Span


def encode_iteration(batch: Batch) -> wire.Iteration:
    """The control message of a batch."""
    entries = batch.entries
    message = wire.Iteration(
        number=batch.iteration,
        request_ids=[entry.request_id for entry in entries],
        lengths=[len(entry.tokens) for entry in entries],
        positions=[entry.position for entry in entries],
        tokens=[token for entry in entries for token in entry.tokens],
        drops=batch.drops,
        kept=[
            wire.Kept(request_id=k.request_id, first_page=k.first_page, first_block=k.first_block, n=k.n)
            for k in batch.kept
            if k.n
        ],
        evicted=batch.evicted,
    )
    for row, entry in enumerate(entries):
        if entry.params is not None:
            message.admissions.add(
                row=row,
                sampling=encode_sampling(entry.params),
                stop_ids=sorted(entry.stop_ids),
                seed=entry.seed,
                n_output=entry.n_output,
            )
        elif entry.n_to_come:
            message.pieces.add(row=row, n_to_come=entry.n_to_come, pooling=encode_pooling(entry.pooling))
        else:
            continue
        if (prefix := entry.prefix) is not None:
            message.prefixes.add(
                row=row, blocks=prefix.blocks, copied=prefix.copied, n_copied=prefix.n_copied, tokens=prefix.tokens
            )
        if entry.adapter:
            message.adapted.add(row=row, adapter=entry.adapter)
        if entry.scoring is not None:
            message.scorings.add(row=row, n_top=entry.scoring.n_top, follower=entry.scoring.follower)
    return message


def decode_iteration(message: wire.Iteration) -> Batch:
    """Raises ValueError if the columns disagree, InvalidRequest if sampling settings are wrong."""
    tokens, at = list(message.tokens), 0
    admissions = {admission.row: admission for admission in message.admissions}
    pieces = {piece.row: piece for piece in message.pieces}
    scorings = {each.row: _scoring(each) for each in message.scorings}
    prefixes = {each.row: _prefix(each) for each in message.prefixes}
    adapted = {each.row: each.adapter for each in message.adapted}
    entries = []
    columns = zip(message.request_ids, message.lengths, message.positions, strict=True)
    for row, (request_id, length, position) in enumerate(columns):
        own = tokens[at : at + length]
        prefix = prefixes.pop(row, None)
        if prefix is not None and position != len(prefix.tokens):
            raise ValueError(f"iteration {message.number}: row {row} has another prefix than its position says")
        at += length
        if length == 0 or len(own) != length:
            raise ValueError(f"iteration {message.number}: row {row} has other tokens than its length says")
        admission = admissions.pop(row, None)
        if row in pieces:
            piece = pieces.pop(row)
            if admission is not None or piece.n_to_come == 0:
                raise ValueError(f"iteration {message.number}: row {row} is a last piece and is not")
            scoring = scorings.pop(row, None)
            entries.append(
                BatchEntry(
                    request_id,
                    Phase.INITIATION,
                    own,
                    position,
                    n_to_come=piece.n_to_come,
                    scoring=scoring,
                    prefix=prefix,
                    pooling=decode_pooling(piece.pooling),
                    adapter=adapted.pop(row, 0),
                )
            )
        elif admission is None:
            if length != 1 or prefix is not None:
                raise ValueError(f"iteration {message.number}: row {row} is an increment of {length} tokens")
            entries.append(Increment(request_id, own[0], position))
        else:
            if admission.n_output >= position + length:
                raise ValueError(f"iteration {message.number}: row {row} has no prompt")
            params, stop_ids = decode_sampling(admission.sampling), frozenset(admission.stop_ids)
            settings = params, stop_ids, admission.seed, admission.n_output
            scoring = scorings.pop(row, None)
            entries.append(
                BatchEntry(
                    request_id,
                    Phase.INITIATION,
                    own,
                    position,
                    *settings,
                    scoring=scoring,
                    prefix=prefix,
                    pooling=params.pooling,
                    adapter=adapted.pop(row, 0),
                )
            )
    if at != len(tokens) or admissions or pieces or scorings or prefixes or adapted or not entries:
        text = "there are tokens, prefixes, admissions, pieces, adapters or scorings of no row"
        raise ValueError(f"iteration {message.number}: {text}")
    kept = tuple(Kept(k.request_id, k.first_page, k.first_block, k.n) for k in message.kept)
    return Batch(message.number, tuple(entries), tuple(message.drops), kept, tuple(message.evicted))


def _prefix(message: wire.Prefix) -> Prefix:
    return Prefix(list(message.blocks), list(message.tokens), message.copied, message.n_copied)


def _scoring(message: wire.Scoring) -> Scoring:
    return Scoring(message.n_top, message.follower if message.HasField("follower") else None)


def encode_result(result: IterationResult) -> wire.FromWorker:
    message = wire.Result(iteration=result.iteration, tokens=result.tokens, seconds=result.seconds)
    message.failures.update(result.failures)
    for request_id, logprobs in result.logprobs.items():
        encode_logprobs(logprobs, message.logprobs[request_id])
    message.embeddings.update(result.embeddings)
    return wire.FromWorker(result=message)


def encode_results(result: IterationResult) -> Iterator[wire.FromWorker]:
    """As encode_result; before it parts of it, if its log-probabilities and embeddings are too much for one message."""
    if not result.logprobs and not result.embeddings:
        yield encode_result(result)
        return
    logprobs, embeddings = dict(result.logprobs), dict(result.embeddings)
    sizes = {request_id: len(embedding) for request_id, embedding in embeddings.items()}
    for request_id, own in logprobs.items():
        sizes[request_id] = sizes.get(request_id, 0) + size_of(own)
    while sum(sizes.values()) > MAX_TURN_BYTES and len(sizes) > 1:
        part, size = wire.ResultPart(), 0
        for request_id in list(sizes):
            size += sizes[request_id]
            if size > MAX_TURN_BYTES and (part.logprobs or part.embeddings):
                break
            del sizes[request_id]
            if request_id in logprobs:
                encode_logprobs(logprobs.pop(request_id), part.logprobs[request_id])
            if request_id in embeddings:
                part.embeddings[request_id] = embeddings.pop(request_id)
        yield wire.FromWorker(part=part)
    yield encode_result(replace(result, logprobs=logprobs, embeddings=embeddings))


def decode_result(message: wire.Result, parts: Sequence[wire.ResultPart] = ()) -> IterationResult:
    """parts: those that came before. Raises ValueError if columns disagree."""
    logprobs, embeddings = _logprobs(message.logprobs), dict(message.embeddings)
    for part in parts:
        logprobs |= _logprobs(part.logprobs)
        embeddings |= part.embeddings
    return IterationResult(
        message.iteration, list(message.tokens), dict(message.failures), message.seconds, logprobs, embeddings
    )


def _logprobs(messages: Mapping[int, engine_wire.Logprobs]) -> dict[int, Logprobs]:
    return {request_id: decode_logprobs(message) for request_id, message in messages.items()}


def encode_spans(spans: IterationSpans) -> wire.FromWorker:
    return wire.FromWorker(
        spans=wire.Spans(
            iteration=spans.iteration,
            n_requests=spans.n_requests,
            n_tokens=spans.n_tokens,
            names=[span.name for span in spans.spans],
            starts=[span.start for span in spans.spans],
            ends=[span.end for span in spans.spans],
        )
    )


def decode_spans(message: wire.Spans) -> IterationSpans:
    """Raises ValueError if the columns disagree."""
    spans = [Span(*columns) for columns in zip(message.names, message.starts, message.ends, strict=True)]
    return IterationSpans(message.iteration, message.n_requests, message.n_tokens, spans)


def encode_beat(beat: Beat) -> wire.FromWorker:
    return wire.FromWorker(
        beat=wire.Beat(busy=beat.busy, n_run=beat.n_run, progress=beat.progress, waits_for=beat.waits_for)
    )


def decode_beat(message: wire.Beat) -> Beat:
    return Beat(message.busy, message.n_run, message.progress, message.waits_for)


def encode_failure(error: OrcaServeError) -> wire.FromWorker:
    name = error.name if isinstance(error, ConfigError) else ""
    message = str(error).removeprefix(f"{name}: ") if name else str(error)
    return wire.FromWorker(failure=wire.WorkerFailure(kind=type(error).__name__, name=name, message=message))


def decode_failure(failure: wire.WorkerFailure) -> OrcaServeError:
    """The error as the worker raised it; an EngineError if it is of no kind that a worker raises."""
    kind = getattr(core, failure.kind, None)
    if kind is ConfigError:
        return ConfigError(failure.name, failure.message)
    if isinstance(kind, type) and issubclass(kind, ModelError):
        return kind(failure.message)
    return EngineError(failure.message)
