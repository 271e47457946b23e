"""Reading one JSON value as its text comes, so that what was read is at any time the beginning of a valid value.

The text goes to `out` as the model wrote it, but for raw control characters inside of strings, which JSON does not
allow and models write: they are escaped. Readers raise Malformed where the text stops being JSON.
"""

from __future__ import annotations

import json
import re

from orcaserve.serving.tool_calls.characters import Characters, Malformed, Steps

MAX_DEPTH = 64
MAX_NUMBER = 512  # characters

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_BLANKS = " \t\r\n"


def json_value(source: Characters, out: list[str], depth: int = 0) -> Steps[None]:
    if depth > MAX_DEPTH:
        raise Malformed
    character = yield from source.peek()
    if character == "{":
        yield from _container(source, out, depth, "}")
    elif character == "[":
        yield from _container(source, out, depth, "]")
    elif character == '"':
        yield from json_string(source, out)
    elif character in "-0123456789":
        yield from _number(source, out)
    else:
        word = yield from source.take_one_of("true", "false", "null")
        if not word:
            raise Malformed
        out.append(word)


def json_string(source: Characters, out: list[str]) -> Steps[None]:
    """From quote to quote."""
    yield from source.expect('"')
    out.append('"')
    while True:
        plain = _PLAIN.match(source.text, source.at)
        if plain is not None:
            source.at = plain.end()
            out.append(plain[0])
        character = yield from source.take()
        if character == "\\":
            out.append(character + (yield from _escaped(source)))
        elif character == '"':
            out.append(character)
            return
        else:
            out.append(json.dumps(character, ensure_ascii=False)[1:-1])


def string_value(source: Characters) -> Steps[str]:
    """What a JSON string stands for."""
    out: list[str] = []
    yield from json_string(source, out)
    return str(json.loads("".join(out)))


def json_blanks(source: Characters, out: list[str]) -> Steps[str]:
    """Whitespace between tokens. Returns what comes then, not read yet."""
    while (character := (yield from source.peek())) and character in _BLANKS:
        source.at += 1
        out.append(character)
    return character


def _escaped(source: Characters) -> Steps[str]:
    kind = yield from source.take()
    if kind == "u":
        digits = ""
        for _ in range(4):
            digits += yield from source.take()
        if not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            raise Malformed
        return kind + digits
    if kind not in '"\\/bfnrt':
        raise Malformed
    return kind


def _number(source: Characters, out: list[str]) -> Steps[None]:
    text = ""
    while (character := (yield from source.peek())) and character in "+-.0123456789eE":
        source.at += 1
        text += character
        if len(text) > MAX_NUMBER:
            raise Malformed
    if not _NUMBER.fullmatch(text):
        raise Malformed
    out.append(text)


def _container(source: Characters, out: list[str], depth: int, closing: str) -> Steps[None]:
    out.append((yield from source.take()))
    following = yield from json_blanks(source, out)
    if following != closing:
        while True:
            if closing == "}":
                yield from json_string(source, out)
                yield from json_blanks(source, out)
                yield from source.expect(":")
                out.append(":")
                yield from json_blanks(source, out)
            yield from json_value(source, out, depth + 1)
            following = yield from json_blanks(source, out)
            if following != ",":
                break
            source.at += 1
            out.append(",")
            yield from json_blanks(source, out)
    yield from source.expect(closing)
    out.append(closing)
