"""Tools for a chat template that knows none: they are described in words, and calls and answers written as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from orcaserve.serving.tool_calls.tools import Tool

_BEFORE = "You can call functions to help with the request. They are described here, one in a line:\n<tools>\n"
_AFTER = (
    "\n</tools>\nTo call a function, answer with an object of its name and its arguments, between two marks, "
    "once for each call:\n"
    '<tool_call>\n{"name": "the name", "arguments": {"an argument": "its value"}}\n</tool_call>'
)


def describe_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], in_system: bool = True
) -> list[dict[str, Any]]:
    """Messages in which the tools stand in the system's message; or in the first one, if there can be none."""
    written = [dict(message) for message in messages]
    if not tools:
        return written
    lines = [json.dumps(tool.offered["function"], ensure_ascii=False) for tool in tools]
    words = _BEFORE + "\n".join(lines) + _AFTER
    if written[0]["role"] in ("system", "developer"):
        first = {**written[0], "content": f"{text_of(written[0])}\n\n{words}"}
        return [first, *written[1:]]
    if in_system:
        return [{"role": "system", "content": words}, *written]
    return [{**written[0], "content": f"{words}\n\n{text_of(written[0])}"}, *written[1:]]


def text_of(message: Mapping[str, Any]) -> str:
    """Its content as one text."""
    content = message.get("content") or ""
    return "\n".join(part["text"] for part in content) if isinstance(content, list) else str(content)


def write_calls_as_text(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages in which calls and their results are text.

    Results that follow one another are one message: many templates want user and assistant by turns.
    """
    written: list[dict[str, Any]] = []
    after_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result:
            text = f"<tool_response>\n{text_of(message)}\n</tool_response>"
            if after_result:
                written[-1] = {**written[-1], "content": f"{written[-1]['content']}\n{text}"}
            else:
                written.append({"role": "user", "content": text})
        elif message.get("tool_calls"):
            calls = [_written(call["function"]) for call in message["tool_calls"]]
            said = text_of(message)
            text = "\n".join([said, *calls] if said else calls)
            written.append({"role": message["role"], "content": text})
        else:
            written.append(dict(message))
        after_result = is_result
    return written


def _written(function: Mapping[str, Any]) -> str:
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {function["arguments"]}}}\n</tool_call>'
