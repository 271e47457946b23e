"""Mistral, Mixtral: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, newer: `[TOOL_CALLS]name[ARGS]{...}`."""

from __future__ import annotations

import re
import secrets
import string

from orcaserve.serving.tool_calls.characters import Malformed, Steps
from orcaserve.serving.tool_calls.format import CallFormat
from orcaserve.serving.tool_calls.json_calls import JsonCallParser
from orcaserve.serving.tool_calls.lark import Function, Lark
from orcaserve.serving.tool_calls.parser import Marks
from orcaserve.serving.tool_calls.tools import MAX_NAME

ID_LENGTH = 9  # letters and digits: chat templates of this family refuse other ids
_WORD = re.compile(r"[A-Za-z0-9_-]")


class MistralParser(JsonCallParser):
    """Newer models write the name before the arguments, and `[CALL_ID]` with an id, which is passed over."""

    def _block(self, mark: str) -> Steps[None]:
        first = yield from self._source.skip_blanks()
        if first == "[":
            yield from super()._block(mark)
        elif _WORD.match(first):
            yield from self._named_call()
        else:
            raise Malformed

    def _named_call(self) -> Steps[None]:
        source = self._source
        self._out.clear()
        name = self._check((yield from self._word()))
        if (yield from source.take_one_of("[CALL_ID]")):
            yield from self._word()
        yield from source.take_one_of("[ARGS]")
        if (yield from source.skip_blanks()) != "{":
            raise Malformed
        self._begin(name)
        yield from self._arguments()
        self._finish()

    def _word(self) -> Steps[str]:
        word = ""
        while _WORD.match((yield from self._source.peek())):
            word += yield from self._source.take()
            if len(word) > MAX_NAME:
                raise Malformed
        return word


class Mistral(CallFormat):
    name = "mistral"
    signs = ("[TOOL_CALLS]",)
    marks = Marks(("[TOOL_CALLS]",), ("[ARGS]", "[CALL_ID]"))
    parser_type = MistralParser

    def write_calls(self, lark: Lark) -> str:
        if "[ARGS]" in self._template:
            arguments = lark.mark("[ARGS]")

            def write(i: int, function: Function) -> str:
                return f"{lark.text(function.name)} {arguments} {lark.json(f'arguments_{i}', function.schema)}"

            return lark.several(lark.one_call(write), lark.mark(self.opening))
        return f'" "? {lark.listed(lark.one_object("arguments"))}'

    def new_id(self) -> str:
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(ID_LENGTH))
