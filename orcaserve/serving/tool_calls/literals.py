"""A literal of Python, as models write them in calls, turned into the text of a JSON value."""

from __future__ import annotations

import json
import re

from orcaserve.serving.tool_calls.characters import Malformed
from orcaserve.serving.tool_calls.json_text import MAX_DEPTH

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_WORD = re.compile("|".join(_WORDS))
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_CODES = {"x": 2, "u": 4, "U": 8}
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def json_of_literal(text: str) -> str:
    """Text, numbers, True, False, None, lists, tuples and dicts with texts for keys; also JSON's own words.

    Raises Malformed for anything else.
    """
    reader = _Reader(text)
    value = reader.value(0)
    reader.skip_blanks()
    if reader.at != len(text):
        raise Malformed
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def skip_blanks(self) -> str:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def value(self, depth: int) -> str:
        if depth > MAX_DEPTH:
            raise Malformed
        first = self.skip_blanks()
        if first and first in "'\"":
            return json_string_of(self.string())
        if first == "{":
            members = self.items(depth, keyed=True)
            return "{" + ", ".join(members) + "}"
        if first and first in "[(":
            return "[" + ", ".join(self.items(depth, keyed=False)) + "]"
        if word := _WORD.match(self.text, self.at):
            self.at = word.end()
            return _WORDS[word[0]]
        if number := _NUMBER.match(self.text, self.at):
            self.at = number.end()
            return _json_number(number[0])
        raise Malformed

    def items(self, depth: int, keyed: bool) -> list[str]:
        closing = _CLOSING[self.text[self.at]]
        self.at += 1
        items: list[str] = []
        while (following := self.skip_blanks()) != closing:
            if items:
                if following != ",":
                    raise Malformed
                self.at += 1
                if self.skip_blanks() == closing:
                    break
            if keyed:
                if not (first := self.skip_blanks()) or first not in "'\"":
                    raise Malformed
                key = json_string_of(self.string())
                if self.skip_blanks() != ":":
                    raise Malformed
                self.at += 1
                items.append(f"{key}: {self.value(depth + 1)}")
            else:
                items.append(self.value(depth + 1))
        self.at += 1
        return items

    def string(self) -> str:
        quote = self.text[self.at]
        self.at += 1
        parts: list[str] = []
        while True:
            character = self.text[self.at : self.at + 1]
            if not character:
                raise Malformed
            self.at += 1
            if character == quote:
                return "".join(parts)
            parts.append(self._escaped() if character == "\\" else character)

    def _escaped(self) -> str:
        kind = self.text[self.at : self.at + 1]
        self.at += 1
        if kind in _CODES:
            digits = self.text[self.at : self.at + _CODES[kind]]
            self.at += len(digits)
            try:
                return chr(int(digits, 16))
            except (ValueError, OverflowError):
                raise Malformed from None
        if kind in ("\\", "'", '"'):
            return kind
        return _ESCAPES.get(kind, "\\" + kind)  # as Python: a backslash that escapes nothing is one


def json_string_of(text: str) -> str:
    """In JSON; readable, but for halves of surrogate pairs, which no text can hold."""
    return json.dumps(text, ensure_ascii=_SURROGATE.search(text) is not None)


def _json_number(text: str) -> str:
    """JSON writes neither a sign +, nor leading zeros, nor a point without digits on both sides."""
    sign = "-" if text[0] == "-" else ""
    text = text.lstrip("+-")
    whole, point, rest = text.partition(".")
    if not point:
        digits = re.match("[0-9]+", text)
        assert digits is not None
        return sign + (digits[0].lstrip("0") or "0") + text[digits.end() :]
    fraction = re.match("[0-9]*", rest)
    assert fraction is not None
    return f"{sign}{whole.lstrip('0') or '0'}.{fraction[0] or '0'}{rest[fraction.end() :]}"
