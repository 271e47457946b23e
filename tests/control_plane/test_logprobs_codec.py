"""Log-probabilities survive both contracts, in several messages if need be; columns that disagree are refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.control_plane import codec, logprobs_codec, worker_codec
from orcaserve.control_plane import engine_pb2 as wire
from orcaserve.control_plane import worker_pb2 as worker_wire
from orcaserve.core import (
    Batch,
    BatchEntry,
    EngineStatus,
    FinishReason,
    Increment,
    IterationReport,
    IterationResult,
    Logprobs,
    Phase,
    Progress,
    Request,
    SamplingParams,
    Scoring,
    TokenLogprobs,
)

floats = st.floats(-1e4, 0, width=32)
ids = st.integers(0, 2**31 - 1)


@st.composite
def tokens(draw: st.DrawFn) -> TokenLogprobs:
    n = draw(st.integers(0, 3))
    top = st.lists(ids, min_size=n, max_size=n), st.lists(floats, min_size=n, max_size=n)
    return TokenLogprobs(draw(floats), draw(ids), draw(top[0]), draw(top[1]))


logprobs = st.builds(Logprobs, st.none() | tokens(), st.lists(tokens(), max_size=4))
STATUS = EngineStatus()


@given(logprobs)
def test_they_survive_the_wire(told: Logprobs) -> None:
    message = wire.Logprobs()
    logprobs_codec.encode_logprobs(told, message)
    sent = message.SerializeToString()
    assert logprobs_codec.decode_logprobs(wire.Logprobs.FromString(sent)) == told


@given(st.lists(st.builds(Progress, ids, ids, logprobs=st.none() | logprobs), max_size=5))
def test_a_report_survives_the_wire(progress: list[Progress]) -> None:
    report = IterationReport(progress, STATUS, describes=True)
    (sent,) = codec.encode_reports(report)
    assert codec.decode_progress(wire.FromEngine.FromString(sent.SerializeToString()).report) == progress


def test_a_report_that_describes_nothing_is_as_large_as_ever() -> None:
    progress = [Progress(1, 5), Progress(2, 6, FinishReason.STOP)]
    (sent,) = codec.encode_reports(IterationReport(progress, STATUS))
    assert not sent.report.logprobs
    assert sent == codec.encode_report(IterationReport(progress, STATUS))


def prompt_of(n: int) -> Logprobs:
    return Logprobs(None, [TokenLogprobs(-1.5, 3, [1, 2], [-0.5, -0.75])] * n)


def test_what_is_too_large_for_one_message_comes_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_TURN_BYTES", 5000)
    monkeypatch.setattr(worker_codec, "MAX_TURN_BYTES", 5000)
    progress = [Progress(i, i, logprobs=prompt_of(n)) for i, n in enumerate([100, 40, 0, 30, 200, 1])]
    messages = list(codec.encode_reports(IterationReport(progress, STATUS, describes=True)))
    assert len(messages) > 2
    assert [each for message in messages for each in codec.decode_progress(message.report)] == progress

    result = IterationResult(7, [1] * 6, {}, 0.5, {each.request_id: each.logprobs for each in progress})  # type: ignore[misc]
    *parts, last = worker_codec.encode_results(result)
    assert len(parts) > 1 and last.HasField("result")
    assert worker_codec.decode_result(last.result, [message.part for message in parts]) == result


@given(st.dictionaries(st.integers(0, 20), st.tuples(st.integers(0, 60), st.integers(0, 900)), max_size=12))
def test_embeddings_too(sizes: dict[int, tuple[int, int]]) -> None:
    """Of a report and of a result, with log-probabilities among them; no message is larger than it has to be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "MAX_TURN_BYTES", 2000)
        patch.setattr(worker_codec, "MAX_TURN_BYTES", 2000)
        progress = [
            Progress(i, None, FinishReason.LENGTH, None, prompt_of(n) if n else None, embedding=bytes(n_bytes))
            for i, (n, n_bytes) in sizes.items()
        ]
        messages = list(codec.encode_reports(IterationReport(progress, STATUS, describes=True)))
        assert [each for message in messages for each in codec.decode_progress(message.report)] == progress
        told = {each.request_id: each.logprobs for each in progress if each.logprobs is not None}
        vectors = {each.request_id: each.embedding for each in progress if each.embedding is not None}
        result = IterationResult(7, [1], {}, 0.5, told, vectors)
        *parts, last = worker_codec.encode_results(result)
        assert worker_codec.decode_result(last.result, [message.part for message in parts]) == result
        for message in (*parts, last):
            ids = {*(message.part if message in parts else message.result).embeddings}
            assert len(ids) <= 1 or sum(sizes[i][1] for i in ids) <= 2000


@given(logprobs)
def test_sizes_are_bounds(told: Logprobs) -> None:
    same = Logprobs(told.token, [told.token] * len(told.prompt) if told.token else [])
    message = wire.Logprobs()
    logprobs_codec.encode_logprobs(same, message)
    assert message.ByteSize() <= logprobs_codec.size_of(same) + 64


@given(st.builds(IterationResult, ids, st.lists(ids, max_size=3), logprobs=st.dictionaries(ids, logprobs, max_size=3)))
def test_a_result_survives_the_wire(result: IterationResult) -> None:
    (sent,) = worker_codec.encode_results(result)
    back = worker_wire.FromWorker.FromString(sent.SerializeToString())
    assert worker_codec.decode_result(back.result) == result


def test_what_is_wanted_survives_the_wire() -> None:
    params = SamplingParams(logprobs=0, prompt_logprobs=20)
    assert codec.decode_submit(codec.encode_submit(Request(1, [1, 2], params))).params == params
    entries = (
        BatchEntry(1, Phase.INITIATION, [1, 2], 0, n_to_come=3, scoring=Scoring(5, 0)),
        BatchEntry(2, Phase.INITIATION, [1, 2], 0, params, scoring=Scoring(20)),
        BatchEntry(3, Phase.INITIATION, [1, 2], 0, params, n_output=1),
        Increment(4, 1, 7),
    )
    batch = Batch(1, entries)
    sent = worker_codec.encode_iteration(batch).SerializeToString()
    assert worker_codec.decode_iteration(worker_wire.Iteration.FromString(sent)) == batch


@pytest.mark.parametrize(
    "columns",
    [
        {"logprobs": [1.0], "ranks": [1], "n_top": [1]},
        {"logprobs": [1.0], "ranks": [1], "n_top": [0], "top_ids": [1]},
        {"logprobs": [1.0], "ranks": [1], "n_top": []},
        {"logprobs": [1.0], "ranks": [1, 2], "n_top": [0]},
        {"logprobs": [1.0], "ranks": [1], "n_top": [1], "top_ids": [1], "top_logprobs": [1.0, 2.0]},
    ],
)
def test_columns_that_disagree(columns: dict[str, list[float]]) -> None:
    message = wire.Logprobs(prompt=wire.TokenLogprobs(**columns))  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        logprobs_codec.decode_logprobs(message)
    report = wire.IterationReport(request_ids=[1], tokens=[1])
    report.logprobs[1].SetInParent()
    with pytest.raises(ValueError, match="not there"):
        codec.decode_progress(report)
    two = wire.TokenLogprobs(logprobs=[0, 0], ranks=[1, 1], n_top=[0, 0])
    with pytest.raises(ValueError, match="more than one"):
        logprobs_codec.decode_logprobs(wire.Logprobs(token=two))


def test_scorings_of_no_row() -> None:
    message = worker_wire.Iteration(number=1, request_ids=[1], lengths=[1], positions=[3], tokens=[5])
    message.scorings.add(row=0, n_top=1)
    with pytest.raises(ValueError, match="scorings of no row"):
        worker_codec.decode_iteration(message)


def test_float32_is_exact() -> None:
    (value,) = struct.unpack("f", struct.pack("f", -1.2345678))
    message = wire.Logprobs()
    logprobs_codec.encode_logprobs(Logprobs(TokenLogprobs(value, 1, [], [])), message)
    assert logprobs_codec.decode_logprobs(message).token == TokenLogprobs(value, 1, [], [])
