"""JsonCallParser: calls that are JSON objects with the function's name and its arguments."""

from __future__ import annotations

import json

from orcaserve.serving.tool_calls.characters import Malformed, Steps
from orcaserve.serving.tool_calls.json_text import json_value, string_value
from orcaserve.serving.tool_calls.parser import CallParser

ARGUMENT_KEYS = ("arguments", "parameters")  # either, whatever the family's own word: models mix them up


class JsonCallParser(CallParser):
    """A block is one call, several with nothing, `;` or `,` between them, or a list of them.

    Arguments may come before the name; then they wait for it. They may be missing (there are none), null, or an object
    that is written as a string.
    """

    def _block(self, mark: str) -> Steps[None]:
        if (yield from self._source.skip_blanks()) == "[":
            yield from self._list()
        else:
            yield from self._call()
            while (yield from self._goes_on()):
                yield from self._call()
        yield from self._source.skip_blanks()
        yield from self._source.take_one_of(*self._marks.ends)

    def _list(self) -> Steps[None]:
        source = self._source
        yield from source.expect("[")
        while True:
            yield from source.skip_blanks()
            yield from self._call()
            yield from source.skip_blanks()
            following = yield from source.take()
            if following == "]":
                self._source.mark = source.at
                return
            if following != ",":
                raise Malformed

    def _goes_on(self) -> Steps[bool]:
        source = self._source
        if (following := (yield from source.skip_blanks())) and following in ";,":
            source.at += 1
            following = yield from source.skip_blanks()
        return following == "{"

    def _call(self) -> Steps[None]:
        """One object, from `{` to `}`."""
        source = self._source
        self._out.clear()
        yield from source.expect("{")
        name: str | None = None
        has_arguments = False
        following = yield from source.skip_blanks()
        while following != "}":
            key = yield from string_value(source)
            yield from source.skip_blanks()
            yield from source.expect(":")
            yield from source.skip_blanks()
            if key == "name" and name is None:
                name = self._check((yield from string_value(source)))
                if has_arguments:
                    self._begin(name)
            elif key in ARGUMENT_KEYS and not has_arguments:
                has_arguments = True
                if name is not None:
                    self._begin(name)
                yield from self._arguments()
            elif key == "name" or key in ARGUMENT_KEYS:
                raise Malformed
            else:
                yield from json_value(source, [])
            following = yield from source.skip_blanks()
            if following == ",":
                source.at += 1
                following = yield from source.skip_blanks()
                if following != '"':
                    raise Malformed
            elif following != "}":
                raise Malformed
        if name is None:
            raise Malformed
        yield from source.expect("}")
        if not has_arguments:
            self._begin(name)
            self._out.append("{}")
        self._finish()

    def _arguments(self) -> Steps[None]:
        source = self._source
        first = yield from source.peek()
        if first == '"':
            self._out.append(_object_in((yield from string_value(source))))
        elif first == "{":
            yield from json_value(source, self._out)
        elif (yield from source.take_one_of("null")):
            self._out.append("{}")
        else:
            raise Malformed


def _object_in(text: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed from None
    if not isinstance(value, dict):
        raise Malformed
    return text
