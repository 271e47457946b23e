"""What master and workers tell each other comes back the same; columns that disagree are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.control_plane import worker_codec as codec
from orcaserve.control_plane import worker_pb2 as wire
from orcaserve.core import (
    Batch,
    BatchEntry,
    CheckpointError,
    ConfigError,
    EngineError,
    Increment,
    InvalidRequest,
    IterationResult,
    Kept,
    ModelNotFound,
    OrcaServeError,
    Phase,
    Pooling,
    Prefix,
    SamplingParams,
)
from orcaserve.core.spans import IterationSpans, Span

token_ids = st.integers(0, 2**31 - 1)
request_ids = st.integers(0, 2**63 - 1)
texts = st.text("aZ é漢🙂\n\0", max_size=20)
times = st.integers(0, 2**63)


@st.composite
def entries(draw: st.DrawFn) -> BatchEntry:
    if draw(st.booleans()):
        return Increment(draw(request_ids), draw(token_ids), draw(token_ids))
    tokens, position = draw(st.lists(token_ids, min_size=1, max_size=20)), draw(st.just(0) | token_ids)
    prefix = None
    if draw(st.booleans()):
        before = draw(st.lists(token_ids, max_size=20))
        copied = draw(st.integers(0, 2**63 - 1)), draw(st.integers(0, 15))
        prefix, position = Prefix(draw(st.lists(request_ids, max_size=4)), before, *copied), len(before)
    pooling = draw(st.none() | st.sampled_from(Pooling))
    if draw(st.booleans()):
        n_to_come = draw(st.integers(1, 2**31 - 1))
        return BatchEntry(
            draw(request_ids), Phase.INITIATION, tokens, position, n_to_come=n_to_come, prefix=prefix, pooling=pooling
        )
    params = SamplingParams(
        max_tokens=0 if pooling else draw(st.integers(1, 2**31 - 1)),
        pooling=pooling,
        temperature=draw(st.floats(0, 2)),
        repetition_penalty=draw(st.floats(0.01, 10)),
        logit_bias=draw(st.dictionaries(token_ids, st.floats(-100, 100), max_size=5)),
    )
    return BatchEntry(
        draw(request_ids),
        Phase.INITIATION,
        tokens,
        position,
        params,
        draw(st.frozensets(token_ids, max_size=4)),
        draw(st.integers(-(2**63), 2**63 - 1)),
        draw(st.integers(0, position + len(tokens) - 1)),
        prefix=prefix,
        pooling=pooling,
    )


kept = st.builds(Kept, request_ids, st.integers(0, 2**31 - 1), request_ids, st.integers(1, 2**31 - 1))


@given(
    st.builds(
        Batch,
        st.integers(1, 2**63),
        st.lists(entries(), min_size=1, max_size=6).map(tuple),
        st.lists(request_ids, max_size=4).map(tuple),
        st.lists(kept, max_size=3).map(tuple),
        st.lists(request_ids, max_size=4).map(tuple),
    )
)
def test_batches(batch: Batch) -> None:
    sent = wire.Iteration.FromString(codec.encode_iteration(batch).SerializeToString())
    assert codec.decode_iteration(sent) == batch


@given(
    st.builds(
        IterationResult,
        request_ids,
        st.lists(token_ids, max_size=6),
        st.dictionaries(request_ids, texts, max_size=3),
        st.floats(0, 1e6),
        embeddings=st.dictionaries(request_ids, st.binary(max_size=12), max_size=3),
    )
)
def test_results(result: IterationResult) -> None:
    sent = wire.FromWorker.FromString(codec.encode_result(result).SerializeToString())
    assert codec.decode_result(sent.result) == result


@given(st.lists(st.builds(Span, texts, times, times), max_size=5), token_ids)
def test_spans(spans: list[Span], n: int) -> None:
    record = IterationSpans(n, n, n, spans)
    assert codec.decode_spans(codec.encode_spans(record).spans) == record


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("--n-slots", "too many"),
        ModelNotFound("no such file"),
        CheckpointError("short"),
        EngineError("gone"),
    ],
)
def test_failures_keep_their_kind(error: OrcaServeError) -> None:
    back = codec.decode_failure(codec.encode_failure(error).failure)
    assert type(back) is type(error) and str(back) == str(error)
    assert getattr(back, "name", None) == getattr(error, "name", None)


@pytest.mark.parametrize("kind", ["", "SystemExit", "Batch", "InvalidRequest"])
def test_failures_of_no_kind_that_workers_have(kind: str) -> None:
    assert type(codec.decode_failure(wire.WorkerFailure(kind=kind, message="x"))) is EngineError


ONE = {"request_ids": [1], "lengths": [1], "positions": [0], "tokens": [5]}


@pytest.mark.parametrize(
    "columns",
    [
        {"request_ids": [], "lengths": [], "positions": [], "tokens": []},
        {"request_ids": [1], "lengths": [0], "positions": [0], "tokens": []},
        {"request_ids": [1], "lengths": [2], "positions": [0], "tokens": [5]},
        {"request_ids": [1], "lengths": [1], "positions": [0], "tokens": [5, 6]},
        {"request_ids": [1, 2], "lengths": [1], "positions": [0], "tokens": [5]},
        {"request_ids": [1], "lengths": [1], "positions": [0], "tokens": [5], "admissions": [wire.Admission(row=1)]},
        {
            "request_ids": [1],
            "lengths": [1],
            "positions": [0],
            "tokens": [5],
            "pieces": [wire.Piece(row=1, n_to_come=1)],
        },
        {"request_ids": [1], "lengths": [1], "positions": [0], "tokens": [5], "pieces": [wire.Piece(row=0)]},
        {
            "request_ids": [1],
            "lengths": [1],
            "positions": [0],
            "tokens": [5],
            "pieces": [wire.Piece(row=0, n_to_come=1)],
            "admissions": [wire.Admission(row=0)],
        },
        {**ONE, "prefixes": [wire.Prefix(row=1)]},
        {**ONE, "prefixes": [wire.Prefix(row=0, tokens=[3])], "pieces": [wire.Piece(row=0, n_to_come=1)]},
        {**ONE, "prefixes": [wire.Prefix(row=0)]},
    ],
)
def test_columns_that_disagree(columns: dict[str, object]) -> None:
    with pytest.raises((ValueError, InvalidRequest)):
        codec.decode_iteration(wire.Iteration(number=1, **columns))  # type: ignore[arg-type]
