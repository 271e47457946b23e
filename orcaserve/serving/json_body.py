"""Reading a JSON object that came from outside: strictly what RFC 8259 allows, no deeper than we say."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from orcaserve.core.errors import InvalidRequest

MAX_DEPTH = 64
# Strings are skipped as a whole, so that brackets inside them do not count.
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_object(body: bytes) -> dict[str, Any]:
    """The object in `body`. Raises InvalidRequest (400) for anything else; its text never repeats the body."""
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_depth(body)
    try:
        value = json.loads(
            body.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_unique
        )
        if _SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode()
    except InvalidRequest:
        raise
    except UnicodeError as error:
        raise _bad("the body is not valid UTF-8 text") from error
    except (ValueError, RecursionError) as error:
        raise _bad("the body is not valid JSON") from error
    if not isinstance(value, dict):
        raise _bad("the body must be a JSON object")
    return value


def _check_depth(body: bytes) -> None:
    depth = 0
    for match in _BRACKETS.finditer(body):
        first = match[0][0]
        if first in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise _bad(f"the body is nested deeper than {MAX_DEPTH} levels")
        elif first in b"]}":
            depth -= 1


def _no_constant(_name: str) -> NoReturn:
    raise _bad("NaN and Infinity are not JSON numbers")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _bad("a number in the body is too large")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _bad("an object in the body has the same key twice")
    return value


def _bad(message: str) -> InvalidRequest:
    return InvalidRequest(None, message, code="invalid_json")
