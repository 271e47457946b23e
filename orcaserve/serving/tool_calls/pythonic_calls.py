"""PythonicCallParser: calls that are written as calls of Python, in a list."""

from __future__ import annotations

import json
import re

from orcaserve.serving.tool_calls.characters import Malformed, Steps
from orcaserve.serving.tool_calls.json_text import MAX_DEPTH
from orcaserve.serving.tool_calls.literals import json_of_literal
from orcaserve.serving.tool_calls.parser import CallParser

_OPENS = {"(": ")", "[": "]", "{": "}"}
_WORD = re.compile(r"[A-Za-z0-9_.-]")
MAX_WORD = 128  # characters of a name


class PythonicCallParser(CallParser):
    """A block is `[name(key=literal, ...), ...]`. Arguments are told of one by one, as JSON."""

    def _block(self, mark: str) -> Steps[None]:
        source = self._source
        yield from source.skip_blanks()
        yield from source.expect("[")
        while True:
            yield from source.skip_blanks()
            yield from self._call()
            following = yield from source.skip_blanks()
            yield from source.take()
            if following == "]":
                break
            if following != ",":
                raise Malformed
        source.mark = source.at
        yield from source.skip_blanks()
        yield from source.take_one_of(*self._marks.ends)

    def _call(self) -> Steps[None]:
        source = self._source
        self._out.clear()
        name = self._check((yield from self._word()))
        yield from source.skip_blanks()
        yield from source.expect("(")
        self._begin(name)
        keys: set[str] = set()
        self._out.append("{")
        while (yield from source.skip_blanks()) != ")":
            key = yield from self._word()
            if not key or key in keys:
                raise Malformed
            yield from source.skip_blanks()
            yield from source.expect("=")
            text, last = yield from self._literal()
            value = json_of_literal(text)
            self._out.append(f"{', ' if keys else ''}{json.dumps(key)}: {value}")
            keys.add(key)
            if last == ")":
                break
            source.at += 1
        yield from source.expect(")")
        self._out.append("}")
        self._finish()

    def _word(self) -> Steps[str]:
        source = self._source
        word = ""
        while _WORD.match((yield from source.peek())):
            word += yield from source.take()
            if len(word) > MAX_WORD:
                raise Malformed
        return word

    def _literal(self) -> Steps[tuple[str, str]]:
        """Text of a value, and the `,` or `)` after it, which is not read yet."""
        source = self._source
        parts: list[str] = []
        closings: list[str] = []
        while True:
            character = yield from source.peek()
            if not closings and character and character in ",)":
                return "".join(parts), character
            parts.append((yield from source.take()))
            if character in "'\"":
                yield from self._rest_of_string(character, parts)
            elif character in _OPENS:
                closings.append(_OPENS[character])
                if len(closings) > MAX_DEPTH:
                    raise Malformed
            elif closings and character == closings[-1]:
                closings.pop()

    def _rest_of_string(self, quote: str, parts: list[str]) -> Steps[None]:
        while True:
            character = yield from self._source.take()
            parts.append(character)
            if character == quote:
                return
            if character == "\\":
                parts.append((yield from self._source.take()))
