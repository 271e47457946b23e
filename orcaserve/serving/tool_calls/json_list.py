"""Granite 3, Phi 4 mini: `<|tool_call|>[{"name": ..., "arguments": {...}}, ...]`, also `<|/tool_call|>` after it."""

from __future__ import annotations

from orcaserve.serving.tool_calls.format import CallFormat
from orcaserve.serving.tool_calls.lark import Lark
from orcaserve.serving.tool_calls.parser import Marks


class JsonList(CallFormat):
    """Some variants write `<tool_call>` or `functools` before the list, or nothing where the answer begins with it."""

    name = "json_list"
    signs = ("<|tool_call|>", "<|tool|>", "functools[", "<|start_of_role|>")
    marks = Marks(("<|tool_call|>", "<tool_call>", "functools"), ("<|/tool_call|>", "</tool_call>"), bare="[")

    @property
    def opening(self) -> str:
        """The one that the template speaks of."""
        return next((mark for mark in self.marks.begins if mark in self._template), self.marks.begins[0])

    def write_calls(self, lark: Lark) -> str:
        calls = lark.listed(lark.one_object("arguments"))
        closing = next((mark for mark in self.marks.ends if mark in self._template), None)
        return calls if closing is None else f"{calls} {lark.mark(closing)}"
