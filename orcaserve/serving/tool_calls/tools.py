"""What a client offers: `tools`, `tool_choice` and `parallel_tool_calls`, read and checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from orcaserve.core.errors import InvalidRequest

MAX_TOOLS = 128
MAX_NAME = 64  # characters
MAX_TOOLS_LENGTH = 2**18  # characters of all tools together, written as JSON
_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_NAME}}}")


class Choice(Enum):
    """tool_choice. A function by its name is REQUIRED with that one alone."""

    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Tool:
    """One function. offered: as the client wrote it, for the chat template. schema: of its arguments.

    strict: a call's arguments must be valid by the schema, also where the model calls it of its own accord.
    """

    name: str
    schema: Mapping[str, Any]
    strict: bool
    offered: Mapping[str, Any]
    field: str


@dataclass(frozen=True, slots=True)
class ToolUse:
    """tools: all that the model is told of. callable: those it may call. most: calls of an answer; None: any number."""

    tools: Sequence[Tool]
    callable: Sequence[Tool]
    choice: Choice
    most: int | None

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.callable)

    @property
    def constrained(self) -> bool:
        """Whether calls are written by a grammar."""
        return self.choice is Choice.REQUIRED or any(tool.strict for tool in self.callable)


def read_tools(body: Mapping[str, Any]) -> ToolUse | None:
    """None if the model is to call nothing: no tools, or tool_choice "none". Raises InvalidRequest naming the field."""
    tools = _tools(body.get("tools"))
    choice = body.get("tool_choice")
    parallel = body.get("parallel_tool_calls")
    if parallel is not None and not isinstance(parallel, bool):
        raise _wrong_type("parallel_tool_calls", "true or false")
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice", "tool_choice is only allowed when tools are given")
        if parallel is not None:
            raise InvalidRequest("parallel_tool_calls", "parallel_tool_calls is only allowed when tools are given")
        return None
    if choice == "none":
        return None
    most = 1 if parallel is False else None
    if choice is None or choice == "auto":
        return ToolUse(tools, tools, Choice.AUTO, most)
    if choice == "required":
        return ToolUse(tools, tools, Choice.REQUIRED, most)
    return _chosen(tools, choice, most)


def _chosen(tools: Sequence[Tool], choice: Any, most: int | None) -> ToolUse:
    """tool_choice as an object: one function, or some that are allowed."""
    if isinstance(choice, dict) and choice.get("type") == "function":
        return ToolUse(tools, [_named(tools, choice)], Choice.REQUIRED, 1)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        if isinstance(allowed, dict) and allowed.get("mode") in ("auto", "required"):
            listed = allowed.get("tools")
            if isinstance(listed, list) and 1 <= len(listed) <= MAX_TOOLS:
                named = dict.fromkeys(_named(tools, item).name for item in listed)
                return ToolUse(tools, [tool for tool in tools if tool.name in named], Choice(allowed["mode"]), most)
    message = 'tool_choice must be "none", "auto", "required", a function of the form {"type": "function", "function":'
    message += ' {"name": "..."}}, or allowed_tools'
    kind = "invalid_value" if isinstance(choice, str | dict) else "invalid_type"
    raise InvalidRequest("tool_choice", message, code=kind)


def _named(tools: Sequence[Tool], item: Any) -> Tool:
    function = item.get("function", item) if isinstance(item, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise InvalidRequest("tool_choice", "tool_choice must name a function", code="invalid_type")
    for tool in tools:
        if tool.name == name:
            return tool
    raise InvalidRequest("tool_choice", "tool_choice names a function that is not among the tools")


def _tools(value: Any) -> list[Tool]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong_type("tools", "a list")
    if len(value) > MAX_TOOLS:
        raise InvalidRequest("tools", f"tools takes at most {MAX_TOOLS} tools")
    tools = [_tool(f"tools[{i}]", item) for i, item in enumerate(value)]
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise InvalidRequest(f"{tool.field}.name", f"{tool.field}.name: another tool has the same name")
        seen.add(tool.name)
    if sum(len(json.dumps(tool.offered)) for tool in tools) > MAX_TOOLS_LENGTH:
        raise InvalidRequest("tools", f"tools must be at most {MAX_TOOLS_LENGTH} characters of JSON")
    return tools


def _tool(field: str, item: Any) -> Tool:
    if not isinstance(item, dict):
        raise _wrong_type(field, "an object")
    if item.get("type") != "function":
        raise InvalidRequest(f"{field}.type", f'{field}.type must be "function"', code="unsupported_parameter")
    field += ".function"
    function = item.get("function")
    if not isinstance(function, dict):
        raise _wrong_type(field, "an object")
    name, strict = function.get("name"), function.get("strict")
    if not isinstance(name, str):
        raise _wrong_type(f"{field}.name", "a string")
    if not _NAME.fullmatch(name):
        message = f"{field}.name must be 1 to {MAX_NAME} letters, digits, underscores and dashes"
        raise InvalidRequest(f"{field}.name", message)
    if function.get("description") is not None and not isinstance(function["description"], str):
        raise _wrong_type(f"{field}.description", "a string")
    if strict is not None and not isinstance(strict, bool):
        raise _wrong_type(f"{field}.strict", "true or false")
    schema = _schema(f"{field}.parameters", function.get("parameters"))
    return Tool(name, schema, bool(strict), item, field)


def _schema(field: str, value: Any) -> Mapping[str, Any]:
    """A schema of an object. A function without parameters takes none."""
    if value is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(value, dict):
        raise _wrong_type(field, "a JSON schema, which is an object")
    if value.get("type", "object") != "object":
        raise InvalidRequest(f"{field}.type", f'{field}.type must be "object"', code="invalid_schema")
    properties, required = value.get("properties", {}), value.get("required", [])
    if not isinstance(properties, dict) or not all(isinstance(item, dict | bool) for item in properties.values()):
        message = f"{field}.properties must be an object of schemas"
        raise InvalidRequest(f"{field}.properties", message, code="invalid_schema")
    if not isinstance(required, list) or not all(isinstance(item, str) for item in required):
        raise InvalidRequest(f"{field}.required", f"{field}.required must be a list of names", code="invalid_schema")
    return {"type": "object", **value}


def _wrong_type(field: str, what: str) -> InvalidRequest:
    return InvalidRequest(field, f"{field} must be {what}", code="invalid_type")
