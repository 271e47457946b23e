"""Lark: a grammar in the notation of llguidance, under construction: the calls that an answer may or must hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_CALLS = 16  # of an answer whose calls are written by a grammar: a model that goes on and on comes to an end


@dataclass(frozen=True, slots=True)
class Function:
    """A function, and what its arguments have to be."""

    name: str
    schema: Mapping[str, Any]


class Lark:
    """functions: which may be called. most: calls. token_ids: of the marks that are tokens of their own."""

    def __init__(self, functions: Sequence[Function], most: int, token_ids: Mapping[str, int]) -> None:
        self.functions = functions
        self.most = min(most, MAX_CALLS)
        self._token_ids = token_ids
        self._rules: list[str] = []

    def text(self, text: str) -> str:
        """An expression for this very text."""
        return json.dumps(text)

    def mark(self, mark: str) -> str:
        token = self._token_ids.get(mark)
        return self.text(mark) if token is None else f"<[{token}]>"

    def is_token(self, mark: str) -> bool:
        return mark in self._token_ids

    def rule(self, name: str, body: str) -> str:
        self._rules.append(f"{name}: {body}")
        return name

    def json(self, name: str, schema: Mapping[str, Any]) -> str:
        """A rule for JSON that the schema allows."""
        return self.rule(name, f"%json {json.dumps(schema, ensure_ascii=False, separators=(',', ':'))}")

    def one_call(self, write: Callable[[int, Function], str]) -> str:
        """A rule for a call of any of the functions; write: an expression for a call of the i-th."""
        calls = [self.rule(f"call_{i}", write(i, function)) for i, function in enumerate(self.functions)]
        return self.rule("call", " | ".join(calls))

    def one_object(self, arguments_key: str) -> str:
        """The same, for calls that are JSON objects."""

        def write(i: int, function: Function) -> str:
            head = f'{{"name": {json.dumps(function.name)}, "{arguments_key}": '
            return f'{self.text(head)} {self.json(f"arguments_{i}", function.schema)} "}}"'

        return self.one_call(write)

    def several(self, call: str, between: str) -> str:
        """As many calls as there may be, at least one; between: an expression."""
        return call if self.most == 1 else f"{call} ({between} {call}){{0,{self.most - 1}}}"

    def listed(self, call: str) -> str:
        """The same, as a list in brackets."""
        several = self.several(call, self.text(", "))
        return f'"[" {several} "]"'

    def written(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._rules]) + "\n"
