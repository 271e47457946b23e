"""Llama 4, and others: `[name(key="text", other=1), ...]`, alone or between `<|python_start|>` and `<|python_end|>`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.tool_calls.format import CallFormat
from orcaserve.serving.tool_calls.lark import Function, Lark
from orcaserve.serving.tool_calls.parser import Marks
from orcaserve.serving.tool_calls.pythonic_calls import PythonicCallParser

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEFINITIONS = ("$defs", "definitions")
_OWN = {"type", "properties", "required", "additionalProperties", "title", "description", "$schema", *_DEFINITIONS}


class Pythonic(CallFormat):
    """When a grammar writes the calls, arguments come in the order of the schema's properties, their values as JSON."""

    name = "pythonic"
    signs = ("<|python_start|>", "func_name1(", "function_name1(")
    marks = Marks(("<|python_start|>",), ("<|python_end|>",), bare="[")
    parser_type = PythonicCallParser

    @property
    def opening(self) -> str:
        return ""

    def write_calls(self, lark: Lark) -> str:
        return lark.listed(lark.one_call(lambda i, function: _call(lark, i, function)))


def _call(lark: Lark, i: int, function: Function) -> str:
    """`name(` required arguments, then those of the others that the model wants `)`."""
    schema = function.schema
    properties: Mapping[str, Any] = schema.get("properties") or {}
    if not properties and schema.get("additionalProperties", True) is not False:
        return _call_with_anything(lark, i, function)
    if not set(schema) <= _OWN or not all(map(_IDENTIFIER.fullmatch, properties)):
        message = "calls in Python's form can be held to schemas with plain properties, whose names are words"
        raise InvalidRequest("tools", message, code="invalid_schema")
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
    required = [name for name in properties if name in schema.get("required", ())]
    others = [name for name in properties if name not in required]
    pairs = {
        name: f"{lark.text(name + '=')} {lark.json(f'value_{i}_{n}', _with(definitions, properties[name]))}"
        for n, name in enumerate(properties)
    }
    fixed = ' ", " '.join(pairs[name] for name in required)
    if required:
        options = "".join(f' (", " {pairs[name]})?' for name in others)
        inside = fixed + options
    else:
        inside = _any_in_order(lark, i, [pairs[name] for name in others])
    return f'{lark.text(function.name + "(")} {inside} ")"'


def _any_in_order(lark: Lark, i: int, pairs: list[str]) -> str:
    """Some or none of the pairs, with commas between them: what may follow after the n-th is a rule of its own."""
    if not pairs:
        return ""
    rules = [lark.rule(f"pair_{i}_{n}", pair) for n, pair in enumerate(pairs)]
    firsts = [" ".join([rule, *(f'(", " {later})?' for later in rules[n + 1 :])]) for n, rule in enumerate(rules)]
    return f"({' | '.join(firsts)})?"


def _call_with_anything(lark: Lark, i: int, function: Function) -> str:
    value = lark.json(f"value_{i}", {})
    pair = lark.rule(f"pair_{i}", f'/[A-Za-z_][A-Za-z0-9_]*/ "=" {value}')
    return f'{lark.text(function.name + "(")} ({pair} (", " {pair})*)? ")"'


def _with(definitions: Mapping[str, Any], schema: Any) -> Mapping[str, Any]:
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    return {**definitions, **schema}
