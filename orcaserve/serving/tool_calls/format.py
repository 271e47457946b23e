"""CallFormat: how the models of a family write calls; one class each, in modules of their own."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import ClassVar

from orcaserve.serving.tool_calls.json_calls import JsonCallParser
from orcaserve.serving.tool_calls.lark import Lark
from orcaserve.serving.tool_calls.parser import CallParser, Marks


class CallFormat(ABC):
    """template: the source of the chat template, by which variants of a format are told apart.

    name: for `--tool-call-parser`. signs: texts by which a chat template shows that its model writes calls so.
    parser_type: what reads them.
    """

    name: ClassVar[str]
    signs: ClassVar[tuple[str, ...]]
    marks: ClassVar[Marks]
    parser_type: ClassVar[type[CallParser]] = JsonCallParser

    def __init__(self, template: str = "") -> None:
        self._template = template

    @classmethod
    def fits(cls, template: str) -> bool:
        return any(sign in template for sign in cls.signs)

    def parser(self, names: Collection[str], most: int, hidden: Collection[str] = ()) -> CallParser:
        """For one answer; arguments as CallParser's."""
        return self.parser_type(self.marks, names, most, hidden)

    @property
    def opening(self) -> str:
        """The mark that a call begins with when a grammar writes it; "" for none."""
        return self.marks.begins[0]

    @abstractmethod
    def write_calls(self, lark: Lark) -> str:
        """What follows the opening mark up to the end of the answer, as an expression of the grammar."""

    def new_id(self) -> str:
        """Of a call, as this family's chat template takes it back."""
        return f"call_{secrets.token_hex(12)}"
