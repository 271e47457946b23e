"""INPUT: empty prompts, ids outside the vocabulary, counts of tokens, control characters."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from case_server import CHAT, COMPLETIONS, MESSAGES, Server, refused
from reciting import CONTEXT

OUTSIDE = [-1, 2**31, 2**63, 2**64, -(2**64), 10**300]


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], None, ...])
def test_b11_an_empty_prompt_starts_a_document(server: Server, prompt: Any) -> None:
    """With the start token that transformers' own tokenizer has: GPT-2's separator, Llama's <s>."""
    start = server.recited.tokenizer.bos_token_id
    answer = server.answer(prompt=prompt, max_tokens=20)
    assert answer["usage"]["prompt_tokens"] == 1
    assert answer["choices"][0]["text"] == server.recited.greedy_text([start], 20)
    assert "".join(server.deltas(prompt=prompt, max_tokens=20)) == answer["choices"][0]["text"]


def test_b11_one_empty_of_two(server: Server) -> None:
    both = server.answer(prompt=["ok", ""], max_tokens=6)["choices"]
    for choice, prompt in zip(both, ["ok", ""], strict=True):
        assert choice["text"] == server.answer(prompt=prompt, max_tokens=6)["choices"][0]["text"]


@pytest.mark.parametrize("prompt", [["ok", 5], ["ok", ["a"]], ["ok", None], [[], [5], "x"], [[1], [10**6]]])
def test_b11_one_bad_member_is_the_end_of_all(gpt2: Server, prompt: Any) -> None:
    before = gpt2.metric("orcaserve_requests_started_total")
    refused(gpt2.ask(prompt=prompt), "prompt")
    assert gpt2.metric("orcaserve_requests_started_total") == before


@pytest.mark.parametrize("token", [*OUTSIDE, "V"])
def test_b13_ids_outside_the_vocabulary(server: Server, token: Any) -> None:
    v = server.recited.vocab_size
    bad = v if token == "V" else token
    for prompt in ([bad], [1, 2, bad], [[1], [bad]]):
        for stream in (False, True):
            error = refused(server.ask(prompt=prompt, stream=stream), "prompt")
            assert f"0..{v - 1}" in error["message"]
    assert server.http.post("/detokenize", json={"tokens": [bad]}).status_code == 400
    assert server.answer(prompt=[v - 1])["usage"]["prompt_tokens"] == 1


def test_b13_good_streams_beside_bad_ids(gpt2: Server) -> None:
    fields = {"max_tokens": 120, "temperature": 1.5, "seed": 4}
    quiet = "".join(gpt2.deltas(**fields))
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(gpt2.deltas, **fields) for _ in range(4)]
        for token in [*OUTSIDE, gpt2.recited.vocab_size] * 4:
            refused(gpt2.ask(prompt=[token]), "prompt")
        assert {"".join(stream.result()) for stream in running} == {quiet}


BAD_COUNTS = [-1, 10**9, CONTEXT, 2**31, 2**63, -(2**63), 1.0, 1.5, "5", True, [], {}]


@pytest.mark.parametrize("value", BAD_COUNTS)
def test_b15_counts_of_tokens_are_refused_by_their_names(gpt2: Server, value: Any) -> None:
    for path in (COMPLETIONS, CHAT):
        refused(gpt2.ask(path, max_tokens=value), "max_tokens")
    refused(gpt2.ask(CHAT, max_completion_tokens=value, max_tokens=...), "max_completion_tokens")


@pytest.mark.parametrize("value", [-1, 5, 2**31, 2**63, 1.0, 1.5, "5", True, [], {}])
def test_b15_min_tokens_too(gpt2: Server, value: Any) -> None:
    """The sibling: no more than max_tokens."""
    for path in (COMPLETIONS, CHAT):
        refused(gpt2.ask(path, min_tokens=value, max_tokens=4), "min_tokens")


def test_b15_what_is_absent(gpt2: Server) -> None:
    for absent in (..., None):
        assert gpt2.answer(max_tokens=absent)["usage"]["completion_tokens"] == 16
        assert gpt2.answer(CHAT, max_tokens=absent)["usage"]["total_tokens"] == CONTEXT
    assert gpt2.answer(max_tokens=1)["usage"]["completion_tokens"] == 1


def test_b15_the_last_place_of_the_context(gpt2: Server) -> None:
    prompt = gpt2.recited.script[: CONTEXT - 1]
    answer = gpt2.answer(prompt=prompt, max_tokens=...)
    assert answer["usage"]["completion_tokens"] == 1 and answer["choices"][0]["finish_reason"] == "length"
    for tokens in (2, CONTEXT, 10**9):
        error = refused(gpt2.ask(prompt=prompt, max_tokens=tokens), "max_tokens")
        assert error["code"] == "context_length_exceeded"
        for number in (CONTEXT - 1, tokens, CONTEXT - 1 + tokens, CONTEXT):
            assert str(number) in error["message"], error
    error = refused(gpt2.ask(prompt=gpt2.recited.script[:CONTEXT], max_tokens=...), "prompt")
    assert error["code"] == "context_length_exceeded"


def test_b15_both_names_of_the_count(gpt2: Server) -> None:
    assert gpt2.answer(CHAT, max_tokens=3, max_completion_tokens=3)["usage"]["completion_tokens"] == 3
    refused(gpt2.ask(CHAT, max_tokens=3, max_completion_tokens=4), "max_tokens")


@pytest.mark.parametrize("text", ["Say A.\u0000 Say B.", "\u0000", "\u0001\u001f\u007f", "a\u0000\u0000b\r\n\t"])
def test_b17_control_characters_are_characters(server: Server, text: str) -> None:
    """The whole string counts, at every door that takes text."""
    encode = server.recited.encode
    assert server.ids(text) == encode(text)
    assert server.answer(prompt=text)["usage"]["prompt_tokens"] == len(encode(text))
    rendered = server.recited.tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False)
    ids = server.recited.tokenizer.encode(rendered, add_special_tokens=False)
    messages = [{"role": "user", "content": text}]
    assert server.answer(CHAT, messages=messages)["usage"]["prompt_tokens"] == len(ids)
    assert server.http.post("/tokenize", json={"messages": messages}).json()["tokens"] == ids
    assert server.both(stop=["\u0000", "\u0001"], max_tokens=8) == (server.known, "length")


@pytest.mark.parametrize("byte", range(0x20))
def test_b17_raw_control_bytes_are_no_json(gpt2: Server, byte: int) -> None:
    for field, path in (("prompt", COMPLETIONS), ("user", CHAT), ("stop", COMPLETIONS)):
        body = gpt2.body(path, **{field: "a@b"})
        refused(gpt2.send(json.dumps(body).encode().replace(b"a@b", b"a" + bytes([byte]) + b"b"), path), None)
    raw = json.dumps({"model": "M", "messages": MESSAGES}).encode().replace(b"count", b"co" + bytes([byte]))
    refused(gpt2.send(raw, CHAT), None)
