"""Reading a JSON object that came from outside: strictly what RFC 8259 allows, and no more of it than we say."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from orcaserve.core.errors import InvalidRequest

MAX_DEPTH = 64
MAX_PARTS = 2**16  # strings, lists and objects of one body
MAX_COMMAS = 2**19  # a bound on its numbers; the library's parser gives way to other threads only when it is through
# Strings are found as a whole, so that brackets inside them do not count.
_PART = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_object(body: bytes) -> dict[str, Any]:
    """The object in `body`. Raises InvalidRequest (400) for anything else; its text never repeats the body.

    A large body takes tens of milliseconds: call it on a thread.
    """
    if body.count(b",") > MAX_COMMAS:
        raise _bad("the body holds too many values")
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH or body.count(b'"') > MAX_PARTS:
        _check_parts(body)
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


def _check_parts(body: bytes) -> None:
    """Count strings, lists and objects, and how deep they lie; no longer than up to the limit."""
    depth, parts = 0, 0
    for match in _PART.finditer(body):
        first = match[0][0]
        if first in b"]}":
            depth -= 1
            continue
        parts += 1
        if parts > MAX_PARTS:
            raise _bad(f"the body holds more than {MAX_PARTS} strings, lists and objects")
        if first in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise _bad(f"the body is nested deeper than {MAX_DEPTH} levels")


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
