"""Fields without effect: named in a header and counted, also inside others; errors in strict mode."""

from __future__ import annotations

import re
from typing import Any

import pytest

MESSAGE = {"role": "user", "content": "hi"}
# body, what has no effect in it
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "title": "f"}, "x": 1}}
PART = {"type": "text", "text": "a", "cache": {}}
CASES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("/v1/completions", {"prompt": "a", "frobnicate": 1}, ["frobnicate"]),
    ("/v1/completions", {"prompt": "a", "stream": True, "stream_options": {"usage": True}}, ["stream_options.usage"]),
    ("/v1/completions", {"prompt": [[1, 2], [3]], "x": None}, ["x"]),
    ("/v1/chat/completions", {"messages": [{**MESSAGE, "weight": 1}, {**MESSAGE, "weight": 2}]}, ["messages.weight"]),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [PART]}]}, ["messages.content.cache"]),
    (
        "/v1/chat/completions",
        {"messages": [MESSAGE], "response_format": {"type": "text", "x": 1}},
        ["response_format.x"],
    ),
    ("/v1/chat/completions", {"messages": [MESSAGE], "tools": [TOOL], "tool_choice": "none"}, ["tools.function.x"]),
    ("/tokenize", {"prompt": "a", "y": 1}, ["y"]),
    ("/tokenize", {"messages": [{**MESSAGE, "weight": 1}]}, ["messages.weight"]),
    ("/detokenize", {"tokens": [1], "z": 1}, ["z"]),
    ("/v2/models/tiny/generate", {"text_input": "a", "parameters": {"frobnicate": 1}}, ["frobnicate"]),
    ("/v2/models/tiny/generate", {"text_input": "a", "frobnicate": 1}, ["frobnicate"]),
    ("/tfs/v1/models/tiny:predict", {"instances": ["a"], "frobnicate": 1}, ["frobnicate"]),
    ("/tfs/v1/models/tiny:predict", {"inputs": {"text_input": ["a"], "frobnicate": 1}}, ["frobnicate"]),
]  # fmt: skip
NO_CASES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "a", "logit_bias": {"5": 1}, "user": "me", "seed": 1}),
    ("/v1/completions", {"prompt": "a", "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", {"messages": [{**MESSAGE, "name": "Ann"}]}),
    ("/v2/models/tiny/generate", {"text_input": "a", "parameters": {"max_tokens": 2, "stop_words": ["x"]}}),
    ("/tfs/v1/models/tiny:predict", {"instances": [{"text_input": "a", "max_tokens": 2}]}),
]


def counted(server: Any) -> float:
    found = re.search(r"^orcaserve_ignored_fields_total{.*} (\S+)$", server.http.get("/metrics").text, re.M)
    assert found
    return float(found[1])


def body_of(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 1, **fields} if path.startswith("/v1/") else fields


@pytest.mark.parametrize(("path", "fields", "names"), CASES)
def test_named_and_counted(server: Any, path: str, fields: dict[str, Any], names: list[str]) -> None:
    before = counted(server)
    answer = server.post(path, body_of(path, fields))
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-orcaserve-ignored-fields"] == ", ".join(names)
    assert counted(server) == before + len(names)


@pytest.mark.parametrize(("path", "fields", "names"), CASES)
def test_strict_refuses_them(strict: Any, path: str, fields: dict[str, Any], names: list[str]) -> None:
    answer = strict.post(path, body_of(path, fields))
    assert answer.status_code == 400
    error = answer.json()["error"]
    if path.startswith("/v1/") or path.endswith("tokenize"):
        assert error["code"] == "unknown_field" and error["param"] == names[0] and names[0] in error["message"]
    else:
        assert names[0] in error
    assert "x-orcaserve-ignored-fields" not in answer.headers


def test_strict_repeats_no_odd_name(strict: Any) -> None:
    answer = strict.complete(**{"<b>": 1})
    assert answer.status_code == 400 and "<b>" not in answer.text and answer.json()["error"]["param"] is None
    assert strict.http.get("/v1/files?frobnicate=1").json()["error"]["code"] == "unknown_field"


@pytest.mark.parametrize(("path", "fields"), NO_CASES)
def test_fields_with_an_effect_are_none_of_them(strict: Any, server: Any, path: str, fields: dict[str, Any]) -> None:
    for one in (strict, server):
        answer = one.post(path, body_of(path, fields))
        assert answer.status_code == 200 and "x-orcaserve-ignored-fields" not in answer.headers, answer.text


def test_what_a_template_reads_has_an_effect(other_server: Any, byte_level_metadata: dict[str, Any]) -> None:
    from orcaserve.text.gguf_tokenizer import tokenizer_from_metadata

    template = "{% for m in messages %}{{ m.content }}{{ m.reasoning_content }}{% endfor %}"
    server = other_server(strict=True)
    server.service.tokenizer = tokenizer_from_metadata({**byte_level_metadata, "tokenizer.chat_template": template})
    messages = [{**MESSAGE, "reasoning_content": "well"}]
    assert server.post("/tokenize", {"messages": messages}).status_code == 200
    assert server.post("/tokenize", {"messages": [{**MESSAGE, "weight": 1}]}).status_code == 400
