"""`GET /v1/requests`: every unfinished request, what it does and holds, and why it waits."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from orcaserve.core import USUAL, LiveRequest
from orcaserve.serving.http import Exchange
from orcaserve.serving.service import Choice, Service

if TYPE_CHECKING:
    from orcaserve.serving.app import App


async def live_requests(app: App, exchange: Exchange) -> None:
    await exchange.send_json(200, await described(app.require_service()))


async def described(service: Service) -> dict[str, Any]:
    """As the API writes it, in order of arrival at each replica; of very many not all, and then `has_more` is true."""
    told = await asyncio.gather(*(replica.describe() for replica in service.client.replicas))
    now = time.monotonic()
    rows = [
        _row(each, service.live.get(each.id), number, now) for number, live in enumerate(told) for each in live.requests
    ]
    n_left_out = sum(live.n_left_out for live in told)
    return {"object": "list", "data": rows, "total": len(rows) + n_left_out, "has_more": n_left_out > 0}


def _row(live: LiveRequest, choice: Choice | None, replica: int, now: float) -> dict[str, Any]:
    """choice: None if nobody waits for it any more, and the engine is about to end it."""
    request = None if choice is None else choice.request
    terms = USUAL if request is None else request.terms
    return {
        "id": None if choice is None else choice.origin.id,
        "choice": 0 if choice is None else choice.index,
        "endpoint": None if choice is None else choice.origin.endpoint,
        "state": live.state.value,
        "age_seconds": round(live.age if choice is None else now - choice.arrival, 3),
        "prompt_tokens": live.n_input,
        "output_tokens": live.n_output if request is None else len(request.output),
        "slots_reserved": live.n_reserved,
        "slots_used": live.n_used,
        "client": terms.client,
        "priority": terms.priority,
        "why_waiting": live.why_waiting,
        "number": live.id,
        "replica": replica,
    }
