"""The Jinja environment that chat templates run in: immutable data, no internals, and bounds on what can grow.

What a template may call is listed, by what templates need. A single call inside C cannot be interrupted, so nothing
that is compared, hashed, written or given to a function may be large: it is measured before, with all that is in it as
often as it is in it. What is made counts against a budget of the whole rendering.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from jinja2 import nodes, pass_context, pass_eval_context
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_VALUE = 2**23  # characters of any one value, with all that is in it
MAX_MADE = 2**28  # characters that one rendering may make in all
ITEM = 16  # characters that an item of a list or dict counts as
MAX_ARGUMENT = 256  # characters that searching and stripping may look for: some of it takes text times argument steps
MAX_INT_BITS = 4096  # of a number that is calculated with
MAX_INDENT = 16  # spaces, and characters of a separator, of `tojson`
MAX_DIGITS = 16  # that `round` may keep

FILTERS_ALLOWED = (
    "abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "groupby", "int",
    "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "safe",
    "select", "selectattr", "sort", "string", "title", "trim", "truncate", "unique", "upper", "wordcount",
)  # fmt: skip
METHODS_ALLOWED: dict[type, frozenset[str]] = {
    str: frozenset((
        "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii",
        "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip",
        "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip",
        "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper",
    )),
    dict: frozenset(("copy", "get", "items", "keys", "values")),
    list: frozenset(("copy", "count", "index")),
    tuple: frozenset(("count", "index")),
    int: frozenset(),
    float: frozenset(),
    bytes: frozenset(),
}  # fmt: skip


class _Budget(threading.local):
    left = 0


_budget = _Budget()


def begin_rendering() -> None:
    """Give this thread the budget of one rendering."""
    _budget.left = MAX_MADE


class _Compiler(CodeGenerator):
    """Sends comparisons, tuples and the `~` operator through the sandbox, as Jinja does other operators."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concatenate((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        self.write("(")
        self._measured(self.visit, node.expr, frame)
        for operand in node.ops:
            self.write(f" {operators[operand.op]} ")
            self._measured(self.visit, operand.expr, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":  # it may be hashed
            self._measured(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def _measured(self, visit: Callable[[Any, Frame], None], node: nodes.Expr, frame: Frame) -> None:
        self.write("environment.measured(")
        visit(node, frame)
        self.write(")")


class Sandbox(ImmutableSandboxedEnvironment):
    code_generator_class = _Compiler
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self, **options: Any) -> None:
        # Not optimized, and with a context for `finalize`: nothing of the template is run while it is compiled.
        super().__init__(optimized=False, finalize=_written, **options)
        filters = {name: FILTERS[name] for name in FILTERS_ALLOWED}
        filters |= {"indent": _indent, "join": _join, "replace": _replace, "round": _round, "tojson": _to_json}
        self.filters = {name: _guarded(filters.get(name, _unavailable)) for name in FILTERS | filters}
        self.globals.pop("lipsum", None)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise SecurityError(f"{operator} is not available in chat templates")
        for value, other in ((left, right), (right, left)):
            if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
                raise SecurityError("the number is too long")
            if isinstance(value, tuple):
                size_of(value)
            if operator == "*" and isinstance(value, str | list | tuple) and isinstance(other, int):
                _bound(len(value) * other)
        if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            _bound(len(left) + len(right))
        return _spend(super().call_binop(context, operator, left, right))

    def concatenate(self, parts: Iterable[Any]) -> str:
        texts = [_text(part) for part in parts]
        _bound(sum(map(len, texts)))
        return str(_spend("".join(texts)))

    def concat(self, parts: Iterable[str]) -> str:
        """What is written inside of a macro or a block that is captured."""
        return self.concatenate(parts)

    def measured(self, value: Any) -> Any:
        size_of(value)
        return value

    def wrap_str_format(self, value: Any) -> Any:
        if super().wrap_str_format(value) is not None:
            raise SecurityError("format() is not available in chat templates")
        return None

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, allowed in METHODS_ALLOWED.items():
            if isinstance(obj, kind):
                return attr in allowed
        return super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        for value in (owner, *args, *kwargs.values()):
            size_of(value)
        if isinstance(owner, str):
            if name == "replace":
                return _spend(_replace(owner, *args, **kwargs))
            if name == "join":
                parts: list[Any] = list(*args)
                _bound(size_of(parts) + len(owner) * len(parts))
                return _spend(owner.join(parts))
            _check_sought(*args, *kwargs.values())
        return _spend(super().call(__context, __obj, *args, **kwargs))


class Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; when serving it is just its contents."""

    tags = {"generation"}  # noqa: RUF012  (declared so by jinja2)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def size_of(value: Any) -> int:
    """Characters of a value with all that is in it, as often as it is in it. SecurityError once they are too many."""
    size, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        size += ITEM
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, list | tuple | set):
            waiting += item
        elif isinstance(item, dict):
            waiting += item
            waiting += item.values()
        if size + ITEM * len(waiting) > MAX_VALUE:
            raise SecurityError("the result would be too long")
    return size


def _check_sought(*arguments: Any) -> None:
    if any(isinstance(argument, str) and len(argument) > MAX_ARGUMENT for argument in arguments):
        raise SecurityError("what is looked for is too long")


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose arguments and result are measured."""

    @wraps(function)  # with what Jinja has noted on it
    def guarded(*args: Any, **kwargs: Any) -> Any:
        for argument in (*args, *kwargs.values()):
            size_of(argument)
        if function is FILTERS["trim"]:
            _check_sought(*args[1:], *kwargs.values())
        return _spend(function(*args, **kwargs))

    return guarded


def _unavailable(*_args: Any, **_kwargs: Any) -> Any:
    raise SecurityError("this filter is not available in chat templates")


@pass_context
def _written(_context: Context, value: Any) -> Any:
    """What becomes of each value that a template writes."""
    return _spend(_text(value))


def _text(value: Any) -> str:
    size_of(value)
    return str(value)


def _replace(value: Any, old: str, new: str, count: int = -1) -> str:
    text = _text(value)
    found = text.count(old) if count is None or count < 0 else min(count, text.count(old))
    _bound(len(text) + found * len(new))
    return text.replace(old, new, -1 if count is None else count)


@pass_eval_context
def _join(context: nodes.EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    parts = list(value)
    _bound(size_of(parts) + len(d) * len(parts))
    return str(FILTERS["join"](context, parts, d, attribute))


def _indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = _text(value)
    size = len(width) if isinstance(width, str) else width
    _bound(len(text) + size * (text.count("\n") + 1))
    return str(FILTERS["indent"](text, width, first, blank))


def _round(value: Any, precision: int = 0, method: str = "common") -> Any:
    if abs(precision) > MAX_DIGITS:
        raise SecurityError("round() keeps too many digits")
    return FILTERS["round"](value, precision, method)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter would escape for HTML; a prompt is not HTML."""
    if (indent or 0) > MAX_INDENT or any(len(separator) > MAX_INDENT for separator in separators or ()):
        raise SecurityError("tojson indents too much")
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    parts, size = [], 0
    for part in encoder.iterencode(value):  # one part if there is no indent
        size += len(part)
        _bound(size)
        parts.append(part)
    return "".join(parts)


def _spend(value: Any) -> Any:
    """Charge what was just made to the rendering's budget."""
    if isinstance(value, str | list | tuple | dict):
        _budget.left -= len(value) if isinstance(value, str) else ITEM * len(value)
        if _budget.left < 0:
            raise SecurityError("the template makes too much")
        _bound(len(value))
    return value


def _bound(size: int) -> None:
    if size > MAX_VALUE:
        raise SecurityError("the result would be too long")
