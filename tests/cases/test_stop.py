"""STOP: stop strings that end inside a token, that are shown, that are empty, and that are the first text of all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from case_server import CHAT, COMPLETIONS, SECRET, Server, refused

PATHS = (COMPLETIONS, CHAT)
N = 80  # tokens


def inside_a_token(server: Server, n: int = N) -> tuple[str, str]:
    """The known text, and two characters of it that end before the token does which they begin in."""
    output = server.recited.greedy(server.prompt, n)
    text = server.recited.continuation(server.prompt, output)
    for i in range(4, n):
        before = server.recited.continuation(server.prompt, output[:i])
        token = server.recited.continuation(server.prompt, output[: i + 1])[len(before) :]
        stop = token[1:3]
        if len(token) >= 4 and token.isascii() and text.index(stop) == len(before) + 1:
            return text, stop
    raise AssertionError("no such token")


def test_b06_a_stop_string_ends_inside_a_token(server: Server) -> None:
    text, stop = inside_a_token(server)
    assert server.both(stop=[stop], max_tokens=N) == (text[: text.index(stop)], "stop")
    across = text[text.index(stop) - 2 : text.index(stop) + 1]  # begins in the token before
    assert server.both(stop=[across], max_tokens=N) == (text[: text.index(across)], "stop")
    several = [stop, "never seen", text[20:22]]
    first = min(text.index(word) for word in several if word in text)
    assert server.both(stop=several, max_tokens=N) == (text[:first], "stop")


def test_b06_in_chat_too(gpt2: Server) -> None:
    whole, _ = gpt2.both(CHAT, max_tokens=30)
    stop = whole[9:12]
    assert gpt2.both(CHAT, stop=stop, max_tokens=30) == (whole[: whole.index(stop)], "stop")


def test_b08_the_stop_string_is_shown_only_if_asked_for(gpt2: Server) -> None:
    """count 1 to 10: the text stops at 7."""
    prompt = gpt2.ids("count")
    whole, _ = gpt2.both(prompt=prompt, max_tokens=30)
    assert " 5 6 7 8 9" in whole
    assert gpt2.both(prompt=prompt, max_tokens=30, stop=["7"]) == (whole[: whole.index("7")], "stop")
    shown = gpt2.both(prompt=prompt, max_tokens=30, stop=["7"], include_stop_str_in_output=True)
    assert shown == (whole[: whole.index("7") + 1], "stop")
    inside, stop = inside_a_token(gpt2)
    shown = gpt2.both(stop=[stop], max_tokens=N, include_stop_str_in_output=True)
    assert shown == (inside[: inside.index(stop) + 2], "stop"), "nothing after it, though the token goes on"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stop", ["", [""], [SECRET, ""], ["a"] * 5, ["a" * 1025], 5, True, {}, [5], [None], [["a"]]])
def test_b09_stop_strings_are_refused(gpt2: Server, stop: Any, path: str) -> None:
    for stream in (False, True):
        refused(gpt2.ask(path, stop=stop, stream=stream), "stop")


def test_b09_a_stop_string_of_a_megabyte(gpt2: Server) -> None:
    error = refused(gpt2.send(json.dumps(gpt2.body(stop=SECRET + "a" * 2**20)).encode()), "stop")
    assert "1024" in error["message"]


@pytest.mark.parametrize("stop", [None, []])
def test_b09_none_is_none(gpt2: Server, stop: Any) -> None:
    assert gpt2.both(stop=stop, max_tokens=8) == (gpt2.known, "length")


@pytest.mark.parametrize("path", PATHS)
def test_b09_a_stop_string_as_the_very_first_text(gpt2: Server, path: str) -> None:
    whole, _ = gpt2.both(path, max_tokens=8)
    answer = gpt2.answer(path, stop=[whole[0]], max_tokens=8)
    [choice] = answer["choices"]
    assert (choice["text"] if path == COMPLETIONS else choice["message"]["content"]) == ""
    assert choice["finish_reason"] == "stop" and answer["usage"]["completion_tokens"] >= 1
    frames = gpt2.ask(path, stop=[whole[0]], max_tokens=8, stream=True).text.split("\n\n")[:-1]
    assert frames.pop() == "data: [DONE]"
    choices = [json.loads(frame.removeprefix("data: "))["choices"][0] for frame in frames]
    if path == CHAT:
        assert choices.pop(0)["delta"] == {"role": "assistant", "content": ""}
        assert choices[0]["delta"] == {}
    else:
        assert choices[0]["text"] == ""
    assert [choice["finish_reason"] for choice in choices] == ["stop"]


def test_b09_stop_ids_as_the_very_first_token(server: Server) -> None:
    """The sibling of stop strings: the token is counted and not shown."""
    first = server.recited.greedy(server.prompt, 1)[0]
    answer = server.answer(stop_token_ids=[first], max_tokens=8)
    assert answer["choices"][0]["text"] == "" and answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 1
