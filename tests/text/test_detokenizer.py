"""B01, B02, B04: joined deltas are decode(prompt + output) without decode(prompt), and no delta cuts a character."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orcaserve.core import UnsupportedModel
from orcaserve.text.tokenizer import Tokenizer

KINDS = ["byte_level", "byte_fallback", "metaspace", "default_tokenizer"]


def run(tokenizer: Tokenizer, prompt: list[int], output: list[int], skip: bool = True) -> list[str]:
    detokenizer = tokenizer.detokenizer(prompt, skip)
    return [*(detokenizer.push(token) for token in output), detokenizer.flush()]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300)
@given(data=st.data(), skip=st.booleans())
def test_joined_deltas_equal_the_whole_decode(kind: str, data: Any, skip: bool, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    ids = st.integers(0, tokenizer.vocab_size - 1)
    if kind == "byte_fallback":  # half of them byte tokens, so that runs are common
        ids = st.one_of(ids, st.integers(3, 258))
    output = data.draw(st.lists(ids, max_size=30))
    assert "".join(run(tokenizer, [], output, skip)) == tokenizer.decode(output, skip)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300)
@given(data=st.data())
def test_b02_what_continues_a_prompt_is_the_difference(kind: str, data: Any, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    ids = st.integers(0, tokenizer.vocab_size - 1)
    prompt, output = data.draw(st.lists(ids, max_size=8)), data.draw(st.lists(ids, max_size=8))
    before, whole = tokenizer.decode(prompt), tokenizer.decode(prompt + output)
    text = "".join(run(tokenizer, prompt, output))
    check_difference(before, whole, text)


def check_difference(before: str, whole: str, text: str) -> None:
    if whole.startswith(before):
        rest = whole[len(before) :]
        # Bytes of the prompt that only the output has made ill-formed are the prompt's, and not shown.
        assert rest.endswith(text) and set(rest.removesuffix(text)) <= {"\ufffd"}
    else:  # the prompt's open bytes became a character: what stands before them is the prompt's
        shared = next(i for i, (a, b) in enumerate(zip(before + "\0", whole + "\1", strict=False)) if a != b)
        assert whole.endswith(text) and len(text) <= len(whole) - shared


def test_b02_a_blank_of_the_prompt_in_a_run_that_the_output_spoils(byte_fallback: Tokenizer) -> None:
    """Decoded alone the blank at the beginning is dropped; in an ill-formed run it is a character like the others."""
    prompt, output = [0x20 + 3], [0x80 + 3]
    before, whole = byte_fallback.decode(prompt), byte_fallback.decode(prompt + output)
    assert (before, whole) == ("", "\ufffd\ufffd")
    check_difference(before, whole, "".join(run(byte_fallback, prompt, output)))


@settings(max_examples=200)
@given(text=st.text(min_size=1, max_size=20))
def test_b01_no_delta_holds_part_of_a_character(byte_level: Tokenizer, text: str) -> None:
    deltas = run(byte_level, [], byte_level.encode(text))
    assert "".join(deltas) == text
    assert all("\ufffd" not in delta for delta in deltas) or "\ufffd" in text


@pytest.mark.parametrize("text", ["Ď", "汉", "👩‍🚀"])
@pytest.mark.parametrize("kind", ["byte_level", "default_tokenizer"])
def test_b01_forced_characters(kind: str, text: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    deltas = run(tokenizer, tokenizer.encode("Say"), tokenizer.encode(text))
    assert "".join(deltas) == text and "\ufffd" not in "".join(deltas)


@pytest.mark.parametrize("cut", [1, 2])
def test_b02_prompt_ends_inside_a_character(byte_level: Tokenizer, cut: int) -> None:
    spelled = byte_level.encode("汉")
    assert len(spelled) == 3
    prompt = byte_level.encode("Hello world ") + spelled[:cut]
    after = byte_level.encode(" the")
    assert "".join(run(byte_level, prompt, spelled[cut:] + after)) == "汉 the"
    assert "".join(run(byte_level, prompt, after)) == " the"  # the broken character is the prompt's, not ours


def test_b04_byte_pieces(byte_fallback: Tokenizer) -> None:
    piece = {name: byte_fallback.encode(name) for name in ("깰",)}["깰"]
    assert len(byte_fallback.encode("깰", add_special_tokens=False)) == 4  # the blank before it, and three bytes
    bytes_of = [0xEA + 3, 0xB9 + 3, 0xB0 + 3]
    assert piece[-3:] == bytes_of
    prompt = byte_fallback.encode("Once")
    newline = 0x0A + 3
    once = byte_fallback.encode("Once", add_special_tokens=False)
    assert "".join(run(byte_fallback, prompt, [*bytes_of, newline, *once])) == "깰\n Once"
    assert "".join(run(byte_fallback, prompt, once)) == " Once"  # continues a text: the blank stays
    assert "".join(run(byte_fallback, [1], once)) == "Once"  # begins one: decode drops it
    assert "".join(run(byte_fallback, prompt, [0xEA + 3, *once])) == "\ufffd Once"


def test_b04_prompt_ends_inside_a_run(byte_fallback: Tokenizer) -> None:
    prompt = [*byte_fallback.encode("fox"), 0xEA + 3]
    assert "".join(run(byte_fallback, prompt, [0xB9 + 3, 0xB0 + 3])) == "깰"
    assert "".join(run(byte_fallback, [*prompt, 0xB9 + 3, 0xB0 + 3], [0xFF + 3])) == "\ufffd"


def test_an_id_without_a_token_is_no_text(byte_level: Tokenizer) -> None:
    assert run(byte_level, [], [byte_level.vocab_size + 7]) == ["", ""]


def test_unknown_decoder_stops_the_load() -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    backend = Backend(models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(UnsupportedModel, match="decoder"):
        Tokenizer(backend, {})
    backend.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModel, match="WordPiece"):
        Tokenizer(backend, {})


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100)
@given(data=st.data())
def test_a_fork_goes_on_and_changes_nothing(kind: str, data: Any, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    ids = st.integers(0, tokenizer.vocab_size - 1)
    first, one, other = (data.draw(st.lists(ids, max_size=6)) for _ in range(3))
    detokenizer = tokenizer.detokenizer()
    begin = "".join(map(detokenizer.push, first))
    fork = detokenizer.fork()
    for each, rest in ((fork, one), (detokenizer, other)):
        assert begin + "".join(map(each.push, rest)) + each.flush() == tokenizer.decode(first + rest)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "default_tokenizer"])
def test_bytes_of_tokens_joined_are_the_text(kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    text = "Hello the 汉 fox 🦙"
    ids = tokenizer.encode(text, add_special_tokens=False)
    joined = b"".join(map(tokenizer.token_bytes, ids)).decode()
    assert joined.lstrip(" ") == tokenizer.decode(ids, False).lstrip(" ")
