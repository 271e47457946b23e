"""Requests that are made inside the process: by the handlers of all others, without a socket.

reply = await ask(app, "/v1/completions", body)         # status, body and id of the answer
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from orcaserve.serving.http import Message, Receive, Scope, Send

INSIDE = "orcaserve.inside"  # the ASGI extension of a request that no client sent
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    request_id: str
    body: bytes


def is_inside(scope: Scope) -> bool:
    return INSIDE in scope.get("extensions", {})


async def ask(app: Application, path: str, body: bytes) -> Reply:
    """POST a JSON body. Cancelling the call is a client that leaves."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))],
        "extensions": {INSIDE: {}},
    }
    sent = False
    answered = asyncio.Event()
    status, headers, parts = 500, dict[bytes, bytes](), list[bytes]()

    async def receive() -> Message:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        await answered.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], dict(message["headers"])
            return
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            answered.set()

    await app(scope, receive, send)
    return Reply(status, headers.get(b"x-request-id", b"").decode(), b"".join(parts))
