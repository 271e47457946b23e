"""From an Act to what answers a route."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orcaserve.serving.http import Exchange
from orcaserve.serving.json_body import parse_object
from orcaserve.serving.route import Act, Handle, Read

if TYPE_CHECKING:
    from orcaserve.serving.app import App


def read_json(exchange: Exchange, raw: bytes) -> Mapping[str, Any]:
    return parse_object(raw)


def acting(
    act: Act, *, read: Read = read_json, any_type: bool = False, on_thread: bool = False, queues: bool = False
) -> Handle:
    """Read a body and act on it.

    any_type: it need not be announced as JSON, for clients of protocols that look at no content type.
    queues: it wants an engine's time, so there must be room for it before its body is read.
    on_thread: never on the event loop. A chat template is a program, and its deadline works by tracing its thread.
    """

    async def handle(app: App, exchange: Exchange) -> None:
        await app.act(exchange, act, read, any_type, on_thread, queues)

    return handle
