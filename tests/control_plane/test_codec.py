"""What goes onto the wire comes back the same, and what cannot go is refused by us and not by protobuf."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.control_plane import codec
from orcaserve.control_plane import engine_pb2 as wire
from orcaserve.core import (
    USUAL,
    Began,
    EngineFacts,
    EngineStatus,
    FinishReason,
    Grammar,
    GrammarKind,
    InvalidRequest,
    IterationReport,
    Pooling,
    Progress,
    Request,
    SamplingParams,
    SourceFacts,
    Terms,
)

token_ids = st.integers(0, 2**31 - 1)
request_ids = st.integers(0, 2**63 - 1)
counts = st.integers(0, 2**32 - 1)
seconds = st.floats(0, 1e6)
texts = st.text("aZ é漢🙂\n\0", max_size=20)


grammars = st.builds(Grammar, st.sampled_from(GrammarKind), texts.filter(len))


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    pooling = draw(st.none() | st.sampled_from(Pooling))
    max_tokens = 0 if pooling else draw(st.integers(1, 2**31 - 1))
    grammar = draw(st.none() | grammars)
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, max_tokens)),
        temperature=draw(st.floats(0, 2)),
        top_p=draw(st.floats(0, 1)),
        top_k=draw(st.integers(-1, 2**31 - 1)),
        min_p=draw(st.floats(0, 1)),
        presence_penalty=draw(st.floats(-2, 2)),
        frequency_penalty=draw(st.floats(-2, 2)),
        repetition_penalty=draw(st.floats(0.01, 10)),
        logit_bias=draw(st.dictionaries(token_ids, st.floats(-100, 100), max_size=5)),
        grammar=grammar,
        ignore_eos=grammar is not None and draw(st.booleans()),
        pooling=pooling,
    )


@st.composite
def requests(draw: st.DrawFn) -> Request:
    return Request(
        draw(request_ids),
        draw(st.lists(token_ids, min_size=1, max_size=20)),
        draw(sampling_params()),
        draw(st.frozensets(token_ids, max_size=4)),
        draw(st.integers(-(2**63), 2**63 - 1)),
        output=draw(st.lists(token_ids, max_size=20)),
    )


@st.composite
def progresses(draw: st.DrawFn) -> Progress:
    reason = draw(st.none() | st.sampled_from(FinishReason))
    token = draw(token_ids if reason is None else st.none() | token_ids)
    error = draw(texts) if reason is FinishReason.ERROR else None
    return Progress(draw(request_ids), token, reason, error)


statuses = st.builds(EngineStatus, *[counts] * 8, seconds, seconds, counts, counts)
facts = st.builds(
    EngineFacts,
    model_name=texts,
    vocab_size=st.integers(1, 2**31),
    context_length=counts,
    n_slots=st.integers(1, 2**60),
    max_bs=counts,
    n_workers=counts,
    eos_ids=st.frozensets(token_ids, max_size=4),
    embedding_size=counts,
    source=st.none() | st.builds(SourceFacts, longest=counts, start=token_ids, page_size=counts),
    window=st.none() | st.integers(2, 2**31),
)


@given(requests())
def test_a_request_survives_the_wire(request: Request) -> None:
    sent = wire.ToEngine.FromString(codec.encode_turn([codec.encode_submit(request)], []).SerializeToString())
    back = codec.decode_submit(sent.submits[0])
    assert (back.id, back.input_ids, back.stop_ids) == (request.id, request.input_ids, request.stop_ids)
    assert back.params == request.params
    assert back.seed == request.seed
    assert (back.output, back.n_carried) == (request.output, len(request.output))


@given(st.lists(progresses(), max_size=10), statuses)
def test_a_report_survives_the_wire(progress: list[Progress], status: EngineStatus) -> None:
    sent = codec.encode_report(IterationReport(progress, status)).SerializeToString()
    report = wire.FromEngine.FromString(sent).report
    assert list(codec.decode_progress(report)) == progress
    assert codec.decode_status(report.status) == status


@given(facts)
def test_facts_survive_the_wire(facts: EngineFacts) -> None:
    sent = wire.FromEngine.FromString(codec.encode_facts(facts).SerializeToString())
    assert codec.decode_facts(sent.facts) == facts


def test_settings_that_concern_text_stay_at_the_endpoint() -> None:
    params = SamplingParams(n=3, stop="END", stop_token_ids=frozenset({5}), ignore_eos=True, skip_special_tokens=False)
    assert codec.decode_submit(codec.encode_submit(Request(1, [2], params))).params == SamplingParams()


@pytest.mark.parametrize("bad", [-1, 2**31, 2**32, 2**64, 10**30])
def test_ids_outside_31_bits_are_refused_before_protobuf_sees_them(bad: int) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        codec.encode_submit(Request(1, [1, bad, 2], SamplingParams()))
    assert refusal.value.field == "prompt"
    with pytest.raises(InvalidRequest) as refusal:
        codec.encode_submit(Request(1, [1], SamplingParams(), frozenset({bad})))
    assert refusal.value.field == "stop_token_ids"


def test_a_prompt_too_long_for_a_message_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="must fit a message") as refusal:
        codec.encode_submit(Request(1, [2**31 - 1] * (codec.MAX_TURN_BYTES // 5), SamplingParams()))
    assert refusal.value.field == "prompt"
    assert 2 * codec.MAX_TURN_BYTES <= codec.MAX_MESSAGE_BYTES  # room for what stands around the Submits


GOOD = wire.Sampling(max_tokens=1, temperature=1, top_p=1, repetition_penalty=1)


def with_grammar(**fields: Any) -> wire.Sampling:
    sampling = wire.Sampling()
    sampling.CopyFrom(GOOD)
    sampling.grammar.MergeFrom(wire.Grammar(**fields))
    sampling.grammar.SetInParent()
    return sampling


@pytest.mark.parametrize(
    "submit",
    [
        wire.Submit(request_id=1, sampling=GOOD),
        wire.Submit(request_id=1, input_ids=[1]),
        wire.Submit(request_id=2**63, input_ids=[1], sampling=GOOD),
        wire.Submit(request_id=1, input_ids=[2**31], sampling=GOOD),
        wire.Submit(request_id=1, input_ids=[1], stop_ids=[2**31], sampling=GOOD),
        wire.Submit(request_id=1, input_ids=[1], output_ids=[2**31], sampling=GOOD),
        wire.Submit(request_id=1, input_ids=[1], sampling=wire.Sampling()),
        wire.Submit(request_id=1, input_ids=[1], sampling=wire.Sampling(max_tokens=1, temperature=float("nan"))),
        wire.Submit(request_id=1, input_ids=[1], sampling=with_grammar(text="a")),
        wire.Submit(request_id=1, input_ids=[1], sampling=with_grammar(kind=wire.GRAMMAR_KIND_REGEX)),
        wire.Submit(request_id=1, input_ids=[1], sampling=with_grammar(kind=wire.GRAMMAR_KIND_REGEX, text="a" * 2**17)),
    ],
    ids=[
        "no prompt",
        "no sampling",
        "id",
        "input id",
        "stop id",
        "output id",
        "all zero",
        "NaN",
        "kind",
        "text",
        "long",
    ],
)
def test_a_submit_that_is_wrong_by_itself_is_refused(submit: wire.Submit) -> None:
    with pytest.raises(InvalidRequest):
        codec.decode_submit(submit)


@pytest.mark.parametrize(
    "report",
    [
        wire.IterationReport(request_ids=[1, 2], tokens=[1]),
        wire.IterationReport(request_ids=[1], tokens=[1], ended_rows=[0]),
        wire.IterationReport(request_ids=[1], tokens=[1], ended_rows=[1], finish_reasons=[1]),
    ],
)
def test_columns_that_disagree_are_noticed(report: wire.IterationReport) -> None:
    with pytest.raises(ValueError):
        codec.decode_progress(report)


def test_terms_and_beginnings_travel() -> None:
    terms = Terms("somebody", 2.5, -3, True, "salt", 30.0, 0.5, 0.05)
    sent = codec.encode_submit(Request(7, [1, 2], SamplingParams(), terms=terms))
    assert codec.decode_submit(wire.Submit.FromString(sent.SerializeToString())).terms == terms
    usual = codec.encode_submit(Request(7, [1, 2], SamplingParams()))
    assert not usual.HasField("terms") and codec.decode_submit(usual).terms is USUAL
    news = [Progress(7, 5, began=Began(1.5, 16)), Progress(8, 6), Progress(9, 1, FinishReason.LENGTH, began=Began(0.0))]
    read = codec.decode_progress(codec.encode_report(IterationReport(news, EngineStatus())).report)
    assert [each.began for each in read] == [Began(1.5, 16), None, Began(0.0)]


def test_terms_out_of_bounds_are_refused() -> None:
    for name, value in (("weight", -1.0), ("weight", float("nan")), ("timeout", 0.0), ("client", "x" * 257)):
        submit = codec.encode_submit(Request(7, [1, 2], SamplingParams(), terms=Terms("somebody")))
        setattr(submit.terms, name, value)
        with pytest.raises(InvalidRequest):
            codec.decode_submit(submit)
