"""On which terms a request is served, by its body, its headers, and whoever sends it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orcaserve.config import ApiKey
from orcaserve.core.errors import InvalidRequest
from orcaserve.core.terms import MAX_PRIORITY, MAX_SECONDS, MIN_PRIORITY, Terms
from orcaserve.serving.http import Exchange
from orcaserve.serving.inside import is_inside

FIRST_TOKEN, BETWEEN_TOKENS, TIMEOUT = "x-slo-ttft-ms", "x-slo-tpot-ms", "x-request-timeout-ms"
HEADERS = {
    FIRST_TOKEN: "Milliseconds after its arrival within which the request must have its first token.",
    BETWEEN_TOKENS: "Milliseconds that there may be between two tokens, on the average.",
    TIMEOUT: "Milliseconds after its arrival within which the request must have ended; of this and the field timeout "
    "the shorter one holds.",
}
_MILLISECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")
_COUNT = re.compile(r"[0-9]+")  # of however many digits
RETRY_COUNT = "x-stainless-retry-count"  # OpenAI's clients say with it how often they have sent this request before
_UNIX_SOCKET = "unix"  # whoever is behind it: one client


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request, as far as that is known before it is read. who: key or address. comes_back: whether it was
    refused before; None if the caller says nothing of that.
    """

    who: str
    comes_back: bool | None = None


def caller_of(exchange: Exchange) -> Caller:
    return caller_by(exchange.key, exchange.header(RETRY_COUNT.encode()), exchange.scope.get("client"))


def caller_by(key: ApiKey | None, times: str | None, peer: tuple[str, int] | None) -> Caller:
    """By the key that came with it, the header RETRY_COUNT, and the address it came from."""
    comes_back = times.strip("0") != "" if times is not None and _COUNT.fullmatch(times) else None
    return Caller(_address_in(peer) if key is None else key.name, comes_back)


def headers_of_terms(exchange: Exchange) -> list[tuple[bytes, bytes]]:
    """Those headers that read_terms and caller_of look at."""
    names = {name.encode() for name in (*HEADERS, RETRY_COUNT)}
    return [header for header in exchange.scope["headers"] if header[0] in names]


def read_terms(exchange: Exchange, body: Mapping[str, Any]) -> Terms:
    """Raises InvalidRequest naming the field or the header.

    Whose tokens they are: the holder of the key, else what `user` says, else the address they are sent from. A request
    may put itself behind others of its key (a larger `priority`), not before: it then has the key's.
    """
    user, priority = body.get("user"), _priority(body)
    timeouts = [seconds for seconds in (_timeout(body), _seconds(exchange, TIMEOUT)) if seconds is not None]
    key, background = exchange.key, is_inside(exchange.scope)
    client = "" if background else key.name if key is not None else user or _address(exchange)
    return Terms(
        client=client,
        weight=1.0 if key is None else key.weight,
        priority=priority if key is None else max(priority, key.priority),
        background=background,
        cache_salt=_salt(body),
        timeout=min(timeouts, default=None),
        first_token=_seconds(exchange, FIRST_TOKEN),
        between_tokens=_seconds(exchange, BETWEEN_TOKENS),
    )


def name_of(exchange: Exchange, terms: Terms) -> str:
    """What metrics may call a client: its key's name, or what it says itself. Addresses are not kept: empty."""
    return "" if exchange.key is None and terms.client == _address(exchange) else terms.client


def _address(exchange: Exchange) -> str:
    return _address_in(exchange.scope.get("client"))


def _address_in(peer: tuple[str, int] | None) -> str:
    return str(peer[0]) if peer else _UNIX_SOCKET


def _priority(body: Mapping[str, Any]) -> int:
    value = body.get("priority")
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest("priority", "priority must be an integer", code="invalid_type")
    if not MIN_PRIORITY <= value <= MAX_PRIORITY:
        raise InvalidRequest("priority", f"priority must be an integer from {MIN_PRIORITY} to {MAX_PRIORITY}")
    return value


def _salt(body: Mapping[str, Any]) -> str:
    value = body.get("cache_salt")
    if value is not None and not isinstance(value, str):
        raise InvalidRequest("cache_salt", "cache_salt must be a string", code="invalid_type")
    return value or ""


def _timeout(body: Mapping[str, Any]) -> float | None:
    value = body.get("timeout")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest("timeout", "timeout must be a number of seconds", code="invalid_type")
    if not 0 < value <= MAX_SECONDS or not math.isfinite(value):
        raise InvalidRequest("timeout", f"timeout must be more than 0 and at most {MAX_SECONDS:g} seconds")
    return float(value)


def _seconds(exchange: Exchange, name: str) -> float | None:
    """Of a header in milliseconds."""
    given = exchange.header(name.encode())
    if given is None:
        return None
    seconds = float(given) / 1000 if _MILLISECONDS.fullmatch(given.strip()) else 0.0
    if not 0 < seconds <= MAX_SECONDS:
        message = (
            f"the header {name} must be a number of milliseconds, more than 0 and at most {MAX_SECONDS * 1000:.0f}"
        )
        raise InvalidRequest(name, message, code="invalid_header")
    return seconds
