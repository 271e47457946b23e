"""The messages of a chat as a client sends them, checked for their form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orcaserve.core.errors import InvalidRequest

MAX_MESSAGES = 4096
ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def read_messages(value: Any) -> list[dict[str, Any]]:
    """The messages of a chat: each with a role, and content that is a text or a list of parts that are texts.

    Arguments of tool calls are the text of a JSON object, as they travel.
    """
    if not isinstance(value, list):
        raise InvalidRequest("messages", "messages must be a list", code="invalid_type")
    if not 1 <= len(value) <= MAX_MESSAGES:
        raise InvalidRequest("messages", f"messages must hold 1 to {MAX_MESSAGES} messages")
    return [_message(f"messages[{i}]", item) for i, item in enumerate(value)]


def _message(field: str, item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise InvalidRequest("messages", "each message must be an object", code="invalid_type")
    role = item.get("role")
    if role not in ROLES:
        raise InvalidRequest("messages", f"the role of a message must be one of {', '.join(ROLES)}")
    message = dict(item)
    if item.get("tool_calls") is not None:
        message["tool_calls"] = _tool_calls(f"{field}.tool_calls", item["tool_calls"], role)
    if item.get("tool_call_id") is not None and not isinstance(item["tool_call_id"], str):
        raise _wrong_type(f"{field}.tool_call_id", "a string")
    content = item.get("content")
    if content is None:
        # An assistant that called a tool, or refused, said nothing; everyone else has to say something.
        if role != "assistant" or not (item.get("tool_calls") or item.get("function_call") or item.get("refusal")):
            raise InvalidRequest("messages", "each message needs content")
        return message
    return {**message, "content": _content(content)}


def _content(content: Any) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        raise InvalidRequest("messages", "content must be a string or a list of parts", code="invalid_type")
    if not all(part.get("type") == "text" for part in content):
        raise InvalidRequest("messages", "only parts of type text are supported", code="unsupported_parameter")
    if not all(isinstance(part.get("text"), str) for part in content):
        raise InvalidRequest("messages", "the text of a part must be a string", code="invalid_type")
    return [dict(part) for part in content]


def _tool_calls(field: str, value: Any, role: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise _wrong_type(field, "a list")
    if value and role != "assistant":
        raise InvalidRequest(field, f"{field}: only an assistant calls tools")
    return [_tool_call(f"{field}[{i}]", item) for i, item in enumerate(value)]


def _tool_call(field: str, item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise _wrong_type(field, "an object")
    if item.get("type", "function") != "function":
        raise InvalidRequest(f"{field}.type", f'{field}.type must be "function"', code="unsupported_parameter")
    if item.get("id") is not None and not isinstance(item["id"], str):
        raise _wrong_type(f"{field}.id", "a string")
    function = item.get("function")
    if not isinstance(function, dict):
        raise _wrong_type(f"{field}.function", "an object")
    if not isinstance(function.get("name"), str):
        raise _wrong_type(f"{field}.function.name", "a string")
    arguments = _arguments(f"{field}.function.arguments", function.get("arguments"))
    return {**item, "type": "function", "function": {**function, "arguments": arguments}}


def _arguments(field: str, value: Any) -> str:
    if value is None or value == "":
        return "{}"
    if isinstance(value, dict):  # some clients send what they have parsed
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, str):
        raise _wrong_type(field, "a string with JSON")
    try:
        good = isinstance(json.loads(value, parse_constant=_no_constant), dict)
    except (ValueError, RecursionError):
        good = False
    if not good:
        raise InvalidRequest(field, f"{field} must be the text of a JSON object")
    return value


def _no_constant(_name: str) -> None:
    raise ValueError("NaN and Infinity are not JSON numbers")


def _wrong_type(field: str, what: str) -> InvalidRequest:
    return InvalidRequest(field, f"{field} must be {what}", code="invalid_type")
