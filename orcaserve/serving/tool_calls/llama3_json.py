"""Llama 3.1 and 3.2: `{"name": ..., "parameters": {...}}`, alone or after `<|python_tag|>`; `;` between several."""

from __future__ import annotations

from orcaserve.serving.tool_calls.format import CallFormat
from orcaserve.serving.tool_calls.lark import Lark
from orcaserve.serving.tool_calls.parser import Marks


class Llama3Json(CallFormat):
    """Without the mark a call is one only where the answer begins with it. What follows the mark and is no call, such
    as code, is content."""

    name = "llama3_json"
    signs = ("<|python_tag|>", '"parameters": ')
    marks = Marks(("<|python_tag|>",), (), bare="{")

    @property
    def opening(self) -> str:
        return ""

    def write_calls(self, lark: Lark) -> str:
        return lark.several(lark.one_object("parameters"), '"; "')
