"""Hermes, Qwen 2.5 and 3, Granite 4, SmolLM2: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from __future__ import annotations

from orcaserve.serving.tool_calls.format import CallFormat
from orcaserve.serving.tool_calls.lark import Lark
from orcaserve.serving.tool_calls.parser import Marks


class Hermes(CallFormat):
    """SmolLM2 writes a list of calls between the marks, the others one call; both are read."""

    name = "hermes"
    signs = ("<tool_call>",)
    marks = Marks(("<tool_call>",), ("</tool_call>",))

    def write_calls(self, lark: Lark) -> str:
        begin, end = lark.mark("<tool_call>"), lark.mark("</tool_call>")
        rest = lark.rule("rest", f'"\\n" {lark.one_object("arguments")} "\\n" {end}')
        return lark.several(rest, f'"\\n" {begin}')
