"""B06, B08, B09: stop strings, and the text of one choice as a whole."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orcaserve.core import FinishReason, SamplingParams
from orcaserve.serving.stop_strings import StopFilter
from orcaserve.serving.text_stream import TextStream
from orcaserve.text.tokenizer import Tokenizer


def run(stream: TextStream, tokens: list[int], end: FinishReason | None = FinishReason.LENGTH) -> list[str]:
    deltas = []
    for i, token in enumerate(tokens):
        deltas.append(stream.push(token, end if i == len(tokens) - 1 else None))
        if stream.finish_reason:
            break
    return deltas


def expected_cut(text: str, stops: list[str], include: bool) -> tuple[str, bool]:
    """By definition: the stop string that is complete first; the longest if several are."""
    for end in range(1, len(text) + 1):
        complete = [s for s in stops if text[:end].endswith(s)]
        if complete:
            return (text[:end] if include else text[: end - max(map(len, complete))]), True
    return text, False


@settings(max_examples=500)
@given(
    pieces=st.lists(st.text("ab", max_size=4), max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=4),
    include=st.booleans(),
)
def test_stop_filter_equals_its_definition(pieces: list[str], stops: list[str], include: bool) -> None:
    stop_filter = StopFilter(stops, include)
    shown = ""
    for n, piece in enumerate(pieces):
        shown += stop_filter.push(piece)
        text, found = expected_cut("".join(pieces[: n + 1]), stops, include)
        assert stop_filter.matched == found
        assert text.startswith(shown)  # never more than what stands at the end
        # and never less than can be known: what is held back could still become a stop string
        assert found or any(stop.startswith(text[len(shown) :]) for stop in stops) or shown == text
    text, found = expected_cut("".join(pieces), stops, include)
    assert shown + stop_filter.flush() == text


def test_b06_stop_ends_inside_a_token(byte_level: Tokenizer) -> None:
    tokens = [byte_level.encode(c)[0] for c in "AB"] + byte_level.encode(" the")
    assert len(tokens) == 3
    stream = TextStream(byte_level, [5], SamplingParams(stop=(" t",)))
    assert "".join(run(stream, tokens)) == "AB" and stream.finish_reason is FinishReason.STOP
    assert stream.n_tokens == 3


@pytest.mark.parametrize(("include", "text"), [(False, "one"), (True, "one fox")])
def test_b08_include_option(byte_level: Tokenizer, include: bool, text: str) -> None:
    tokens = byte_level.encode("one fox dog")
    params = SamplingParams(stop=(" fox",), include_stop_str_in_output=include)
    stream = TextStream(byte_level, [5], params)
    assert "".join(run(stream, tokens)) == text and stream.finish_reason is FinishReason.STOP


def test_b09_stop_as_the_very_first_text(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("fox dog")
    stream = TextStream(byte_level, [5], SamplingParams(stop=(byte_level.decode(tokens[:1]),)))
    assert run(stream, tokens) == [""]
    assert stream.finish_reason is FinishReason.STOP and stream.n_tokens == 1


def test_held_back_text_comes_out_at_the_end(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("the f")
    stream = TextStream(byte_level, [5], SamplingParams(stop=(" fox",)))
    deltas = run(stream, tokens)
    assert "".join(deltas) == "the f" and stream.finish_reason is FinishReason.LENGTH


def test_unfinished_character_at_the_end(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("汉")[:2]
    stream = TextStream(byte_level, [5], SamplingParams())
    assert run(stream, tokens) == ["", "\ufffd"] == [*map(str, ["", byte_level.decode(tokens)])]


def test_the_stop_token_is_counted_and_not_shown(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("the fox")
    stream = TextStream(byte_level, [5], SamplingParams())
    assert "".join(run(stream, tokens, FinishReason.STOP)) == byte_level.decode(tokens[:-1])
    assert stream.n_tokens == len(tokens)
    shown = TextStream(byte_level, [5], SamplingParams(include_stop_str_in_output=True))
    assert "".join(run(shown, tokens, FinishReason.STOP)) == "the fox"


def test_min_tokens_comes_before_stop_strings(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("aaaa")
    tokens = [byte_level.encode("a")[0]] * 6
    stream = TextStream(byte_level, [5], SamplingParams(stop=("a",), min_tokens=3))
    assert "".join(run(stream, tokens)) == "aaa" and stream.n_tokens == 4


def test_special_tokens_show_only_if_asked(byte_level: Tokenizer) -> None:
    tokens = [byte_level.encode("a")[0], 1, byte_level.encode("b")[0]]
    assert "".join(run(TextStream(byte_level, [5], SamplingParams()), tokens)) == "ab"
    shown = TextStream(byte_level, [5], SamplingParams(skip_special_tokens=False))
    assert "".join(run(shown, tokens)) == "a<|user|>b"


def test_cancelled_without_a_token(byte_level: Tokenizer) -> None:
    stream = TextStream(byte_level, [5], SamplingParams(stop=("ax",)))
    assert stream.push(byte_level.encode("a")[0]) == ""
    assert stream.push(None, FinishReason.CANCELLED) == "a" and stream.n_tokens == 1


def test_cost_per_token_does_not_grow(default_tokenizer: Tokenizer) -> None:
    """A late block of tokens costs what an early one does, with the longest stops allowed."""
    params = SamplingParams(max_tokens=10**6, stop=("a" * 1024, "ab" * 512))
    tokens = default_tokenizer.encode("aab ab a fox " * 100)
    stream = TextStream(default_tokenizer, tokens, params)
    seconds = []
    for _ in range(12):
        start = time.perf_counter()
        for token in tokens:
            stream.push(token)
        seconds.append((time.perf_counter() - start) / len(tokens))
    assert min(seconds[6:]) < 3 * min(seconds[:6])
