"""Which tokens a text is made of: marks in step with what is shown, offsets, echoes, stop strings."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orcaserve.core import FinishReason, Logprobs, SamplingParams, TokenLogprobs
from orcaserve.serving.marked_text import Echo, Mark, MarkedTextStream, TextOptions
from orcaserve.serving.text_stream import TextStream
from orcaserve.text.tokenizer import Tokenizer


def told(token: int) -> TokenLogprobs:
    return TokenLogprobs(-0.25 * (token % 7), 1, [token], [-0.5])


def run(
    stream: MarkedTextStream, tokens: Sequence[int], end: FinishReason = FinishReason.LENGTH, prompt: Sequence[int] = ()
) -> tuple[list[str], list[list[Mark]]]:
    """What was shown after each token, and marked."""
    texts, marks = [], []
    for i, token in enumerate(tokens):
        news = Logprobs(told(token), [told(t) for t in prompt[1:]] if i == 0 else ())
        texts.append(stream.push(token, end if i == len(tokens) - 1 else None, news))
        marks.append(list(stream.take().marks))
        if stream.finish_reason is not None:
            break
    return texts, marks


PARAMS = SamplingParams(logprobs=1)


def check_steps(texts: list[str], marks: list[list[Mark]]) -> list[Mark]:
    """At every moment the marks are of tokens that begin in what was shown; all of them, joined."""
    shown, n_marks = "", []
    for text, own in zip(texts, marks, strict=True):
        shown += text
        n_marks += own
        assert all(mark.offset <= len(shown) for mark in own)
    assert [mark.offset for mark in n_marks] == sorted(mark.offset for mark in n_marks)
    return n_marks


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_offsets_of_tokens_that_share_characters(kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    text = "the 汉 fox 🦙 깰"
    tokens = tokenizer.encode(text, add_special_tokens=False)
    stream = MarkedTextStream(tokenizer, [5], PARAMS)
    texts, marks = run(stream, tokens)
    flat = check_steps(texts, marks)
    assert [mark.token for mark in flat] == tokens
    for i, mark in enumerate(flat):
        whole = tokenizer.detokenizer([5])
        before = "".join(map(whole.push, tokens[:i]))
        assert mark.offset == len(before)
        assert mark.logprobs == told(mark.token)


@settings(max_examples=300)
@given(
    data=st.data(),
    stops=st.lists(st.text("the fox汉", min_size=1, max_size=4), max_size=3),
    include=st.booleans(),
    skip=st.booleans(),
    end=st.sampled_from([FinishReason.LENGTH, FinishReason.STOP]),
    min_tokens=st.integers(0, 4),
)
def test_marks_are_of_what_is_shown(
    byte_level: Tokenizer,
    data: st.DataObject,
    stops: list[str],
    include: bool,
    skip: bool,
    end: FinishReason,
    min_tokens: int,
) -> None:
    some = [*byte_level.encode("the fox 汉 🦙 the"), 1, 2]
    tokens = data.draw(st.lists(st.sampled_from(some), min_size=1, max_size=12))
    prompt = data.draw(st.lists(st.sampled_from(some), min_size=1, max_size=4))
    params = SamplingParams(
        max_tokens=100, min_tokens=min_tokens, logprobs=1, prompt_logprobs=1, stop=tuple(stops),
        include_stop_str_in_output=include, skip_special_tokens=skip,
    )  # fmt: skip
    echo = Echo(byte_level, prompt, skip) if data.draw(st.booleans()) else None
    stream = MarkedTextStream(byte_level, prompt, params, echo)
    texts, marks = run(stream, tokens, end, prompt)
    flat = check_steps(texts, marks)
    shown = "".join(texts)
    if echo is not None:
        assert [mark.token for mark in flat[: len(prompt)]] == prompt
        assert [mark.offset for mark in flat[: len(prompt)]] == echo.offsets
        assert flat[0].logprobs is None and [m.logprobs for m in flat[1 : len(prompt)]] == list(map(told, prompt[1:]))
        flat, shown = flat[len(prompt) :], shown[len(echo.text) :]
    base = 0 if echo is None else len(echo.text)
    own = tokens[: stream.n_tokens]
    assert [mark.token for mark in flat] == own[: len(flat)]

    plain = TextStream(byte_level, prompt, params)
    if echo is None:
        expected = ""
        for i, token in enumerate(tokens):
            expected += plain.push(token, end if i == len(tokens) - 1 else None)
        assert shown == expected and plain.finish_reason is stream.finish_reason

    assert all(mark.offset - base <= len(shown) for mark in flat)
    cut = stream._stops.matched
    if not cut:
        hidden = end is FinishReason.STOP and not include and stream.n_tokens == len(tokens)
        assert len(flat) == len(own) - hidden
    elif flat:
        assert any(mark.offset - base < len(shown) for mark in flat)


def test_a_stop_string_cuts_its_tokens(byte_level: Tokenizer) -> None:
    tokens = [byte_level.encode(c)[0] for c in "AB"] + byte_level.encode(" the fox")
    stream = MarkedTextStream(byte_level, [5], SamplingParams(stop=("he",), logprobs=1))
    texts, marks = run(stream, tokens)
    assert "".join(texts) == "AB t"
    assert [byte_level.decode([mark.token]) for own in marks for mark in own] == ["A", "B", " the"]
    stream = MarkedTextStream(byte_level, [5], SamplingParams(stop=(" t",), logprobs=1))
    texts, marks = run(stream, tokens)
    assert "".join(texts) == "AB" and [mark.offset for own in marks for mark in own] == [0, 1]
    stream = MarkedTextStream(byte_level, [5], SamplingParams(stop=("A",), logprobs=1))
    assert run(stream, tokens) == ([""], [[]])


def test_an_echo_and_the_output_are_the_text_of_all_tokens(byte_level: Tokenizer, byte_fallback: Tokenizer) -> None:
    """Also where the prompt ends inside a character, which the output completes or not."""
    for tokenizer in (byte_level, byte_fallback):
        for text in ("the 汉 fox", "汉汉", "Hello the"):
            ids = tokenizer.encode(text)
            for n in range(1, len(ids)):
                echo = Echo(tokenizer, ids[:n], True)
                for output in (ids[n:], ids[:1], tokenizer.encode("a", add_special_tokens=False)):
                    stream = MarkedTextStream(tokenizer, ids[:n], SamplingParams(logprobs=0), echo)
                    texts, _ = run(stream, output)
                    assert "".join(texts) == tokenizer.decode([*ids[:n], *output])


def test_an_echo_alone(byte_level: Tokenizer) -> None:
    prompt = byte_level.encode("the 汉")
    params = SamplingParams(max_tokens=0, logprobs=1, prompt_logprobs=1)
    stream = MarkedTextStream(byte_level, prompt, params, Echo(byte_level, prompt, True))
    news = Logprobs(None, [told(token) for token in prompt[1:]])
    assert stream.push(None, FinishReason.LENGTH, news) == "the 汉"
    taken = stream.take()
    assert [mark.token for mark in taken.marks] == prompt and taken.first and not taken.ids
    assert [mark.logprobs for mark in taken.marks] == [None, *map(told, prompt[1:])]
    assert stream.take().marks == [] and not stream.take().first


def test_an_echo_without_log_probabilities(byte_level: Tokenizer) -> None:
    prompt = byte_level.encode("the fox")
    make = TextOptions(echo=True).streams(byte_level, prompt, SamplingParams())
    first, second = make(), make()
    for stream in (first, second):
        assert stream.push(prompt[0]) == "the fox" + byte_level.decode(prompt[:1])
        assert isinstance(stream, MarkedTextStream) and stream.take().marks == []


def test_ids_are_all_that_were_generated(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("the 汉 fox dog")
    stream = MarkedTextStream(byte_level, [5], SamplingParams(stop=("o",)))
    taken = []
    for token in tokens:
        stream.push(token)
        taken += stream.take().ids
        if stream.finish_reason is not None:
            break
    assert taken == tokens[: stream.n_tokens]


def test_the_mean_is_over_all_tokens(byte_level: Tokenizer) -> None:
    stream = MarkedTextStream(byte_level, [5], SamplingParams(logprobs=0))
    assert stream.mean_logprob == 0
    run(stream, [3, 4, 6], FinishReason.STOP)
    assert stream.mean_logprob == pytest.approx(-0.25 * (3 + 4 + 6) / 3)


def test_plain_texts_are_not_marked(byte_level: Tokenizer) -> None:
    assert type(TextOptions().streams(byte_level, [5], SamplingParams())()) is TextStream
