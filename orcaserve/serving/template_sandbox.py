"""The Jinja environment that chat templates run in: immutable data, no internals, and bounds on what can grow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_VALUE = 2**22  # longest text or list that one operation may build
MAX_PADDING = 1024  # widest field that padding and formatting may ask for

# Filters that make much from little, and none a chat template needs.
REMOVED_FILTERS = ("center", "format", "random", "slice", "wordwrap", "xmlattr")
PADDING_METHODS = ("center", "expandtabs", "ljust", "rjust", "zfill")


class _Compiler(CodeGenerator):
    """Sends the `~` operator through the sandbox, which Jinja does for the other operators only."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concatenate((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class Sandbox(ImmutableSandboxedEnvironment):
    code_generator_class = _Compiler
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name in REMOVED_FILTERS:
            self.filters.pop(name, None)
        self.globals.pop("lipsum", None)
        self.filters["replace"] = _replace
        self.filters["indent"] = _indent

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise SecurityError(f"{operator} is not available in chat templates")
        if operator == "+" and _is_sequence(left) and _is_sequence(right):
            _bound(len(left) + len(right))
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if _is_sequence(value) and isinstance(times, int):
                    _bound(len(value) * times)
        return super().call_binop(context, operator, left, right)

    def concatenate(self, parts: Iterable[Any]) -> str:
        texts = [str(part) for part in parts]
        _bound(sum(map(len, texts)))
        return "".join(texts)

    def wrap_str_format(self, value: Any) -> Any:
        if super().wrap_str_format(value) is not None:
            raise SecurityError("format() is not available in chat templates")
        return None

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str):
            if name == "translate":
                raise SecurityError("translate() is not available in chat templates")
            if name in PADDING_METHODS and any(
                isinstance(a, int) and a > MAX_PADDING for a in (*args, *kwargs.values())
            ):
                raise SecurityError("the result would be too long")
            if name == "replace" and len(args) >= 2:
                return _replace(owner, *args)
            if name == "join" and args:
                parts = list(args[0])
                _bound(sum(len(part) for part in parts) + len(owner) * len(parts))
                return owner.join(parts)
        return super().call(__context, __obj, *args, **kwargs)


class Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; when serving it is just its contents."""

    tags = {"generation"}  # noqa: RUF012  (declared so by jinja2)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _replace(text: Any, old: str, new: str, count: int = -1) -> str:
    text = str(text)
    found = text.count(old) if count is None or count < 0 else min(count, text.count(old))
    _bound(len(text) + found * len(new))
    replaced: str = text.replace(old, new, -1 if count is None else count)
    return replaced


def _indent(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    size = len(width) if isinstance(width, str) else width
    _bound(len(text) + size * (str(text).count("\n") + 1))
    return str(FILTERS["indent"](text, width, first, blank))


def _is_sequence(value: Any) -> bool:
    return isinstance(value, str | list | tuple)


def _bound(size: int) -> None:
    if size > MAX_VALUE:
        raise SecurityError("the result would be too long")
