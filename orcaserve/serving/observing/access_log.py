"""AccessLog: a line for each request: who it is, what became of it, and how long that took.

No text, key or address is in it: ids, a route of ours, numbers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from orcaserve.serving.http import Exchange
from orcaserve.serving.observing.account import Account

_log = logging.getLogger("orcaserve.requests")


class AccessLog:
    """asked: lines are wanted whatever the level of the log, but for those of probes. Else all come at debug."""

    def __init__(self, asked: bool) -> None:
        self._asked = asked
        if asked:
            _log.setLevel(min(logging.INFO, logging.getLogger().level))

    def write(self, exchange: Exchange, ended: float) -> None:
        """The request is over. ended: on the monotonic clock."""
        account = exchange.account
        level = logging.INFO if self._asked and not account.quiet else logging.DEBUG
        if not _log.isEnabledFor(level):
            return
        self._tell(level, exchange.id, exchange.client_id, _fields(exchange, account, ended))

    def write_refusal(
        self, request_id: str, client_id: str | None, route: str, status: int, code: str, received: float
    ) -> None:
        """A POST was turned away before it was begun."""
        level = logging.INFO if self._asked else logging.DEBUG
        if _log.isEnabledFor(level):
            took = _milliseconds(time.monotonic() - received)
            fields = {"method": "POST", "route": route, "status": status, "error": code, "total_ms": took}
            self._tell(level, request_id, client_id, fields)

    def _tell(self, level: int, request_id: str, client_id: str | None, fields: Mapping[str, object]) -> None:
        told = " ".join(f"{name}={value}" for name, value in fields.items() if value not in (None, ""))
        client = "" if client_id is None else f" client_id={client_id}"
        ids = {"request_id": request_id, "client_id": client_id}
        _log.log(level, "%s%s %s", request_id, client, told, extra={**ids, "fields": fields})


def _fields(exchange: Exchange, account: Account, ended: float) -> dict[str, object]:
    fields: dict[str, object] = {
        "method": exchange.method if exchange.method in _METHODS else "other",
        "route": account.route or "none",
        "status": account.status or None,  # None: the client left before there was one
        "error": account.code or None,
        "total_ms": _milliseconds(ended - account.received),
    }
    if account.choices:
        fields |= {
            "prompt_tokens": account.n_prompt,
            "output_tokens": account.n_output,
            "queue_ms": _milliseconds(account.queue),
            "first_token_ms": _milliseconds(account.first_token),
            "finish_reason": ",".join(sorted(set(account.finish_reasons))),
            "numbers": ",".join(str(choice.request.id) for choice in account.choices[:_SHOWN]),
        }
    return fields


_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_SHOWN = 16  # numbers by which the engine and the schedule log know its choices


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 1)
