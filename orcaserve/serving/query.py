"""The query of a path: as a table of fields, and paging by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.fields import Field
from orcaserve.serving.http import Exchange

MAX_QUERY_FIELDS = 32
T = TypeVar("T")


def read_query(exchange: Exchange, known: Mapping[str, Field]) -> dict[str, str]:
    """Raises InvalidRequest for one that is malformed, or names the same field twice."""
    raw = exchange.scope.get("query_string", b"").decode("latin-1")
    try:
        pairs = parse_qsl(raw, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS, errors="strict")
    except (ValueError, UnicodeDecodeError) as error:
        raise InvalidRequest(None, "the query is malformed", code="invalid_query") from error
    query = dict(pairs)
    if len(query) != len(pairs):
        raise InvalidRequest(None, "the query names a field twice", code="invalid_query")
    exchange.name_ignored([name for name in query if name not in known])
    return {name: value for name, value in query.items() if value}


def whole_number(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise InvalidRequest(name, f"{name} must be an integer from 1 to {most}")
    return int(text)


def one_page(
    items: Sequence[T], name_of: Callable[[T], str], said: Callable[[T], Any], after: str | None, limit: int
) -> dict[str, Any]:
    """A page of the API's lists. Raises InvalidRequest if `after` names none of the items."""
    start = 0
    if after is not None:
        names = [name_of(item) for item in items]
        if after not in names:
            raise InvalidRequest("after", "after names nothing in this list")
        start = names.index(after) + 1
    page = items[start : start + limit]
    return {
        "object": "list",
        "data": [said(item) for item in page],
        "first_id": name_of(page[0]) if page else None,
        "last_id": name_of(page[-1]) if page else None,
        "has_more": start + limit < len(items),
    }
