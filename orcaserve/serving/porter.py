"""Porter: turns requests away on the connection, by their headers alone, while the door is full.

Under overload refusals are most of what a server does, and what they cost the engine lacks. So a refused request is
neither read nor begun here: no body, no JSON, no task, no Exchange; one answer is written, and what arrives of the body
is thrown away. Whatever is not plain (a large or chunked body, a client that waits for `100 Continue`, a wrong key, a
header that has to be refused for itself, traces) is left to `App`, which answers the same.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orcaserve.serving.door import OVER, Overloaded
from orcaserve.serving.http import client_id_in, encode_json, new_id, openai_form
from orcaserve.serving.terms import RETRY_COUNT, caller_by

if TYPE_CHECKING:
    from orcaserve.serving.app import App

# Of ids; "req" everywhere else.
PREFIXES = {
    "/v1/completions": "cmpl",
    "/v1/chat/completions": "chatcmpl",
    "/v1/embeddings": "embd",
    "/v1/score": "score",
    "/v1/rerank": "rerank",
}
SMALL = 64 * 1024  # bytes of a body that are read to keep the connection, though nobody looks at them
_PATHS = {path.encode(): (path, prefix) for path, prefix in PREFIXES.items()}
_RETRY_COUNT = RETRY_COUNT.encode()
_NOT_PLAIN = {b"transfer-encoding", b"content-encoding", b"expect", b"upgrade"}
_BODY = encode_json(openai_form(Overloaded(OVER, "overloaded", 0.0)))
_ANSWER = (
    b"content-type: application/json\r\ncontent-length: %d\r\nretry-after: %%d\r\nx-request-id: %%b\r\n%%b\r\n%b"
    % (len(_BODY), _BODY.replace(b"%", b"%%"))
)


class Porter:
    """Used on the event loop, by the HTTP server."""

    def __init__(self, app: App) -> None:
        self._app = app

    def turn_away(
        self, url: bytes, headers: Sequence[tuple[bytes, bytes]], peer: tuple[str, int] | None
    ) -> bytes | None:
        """The answer to a POST, behind its status line (429) and the server's own headers; None: it may come on.

        headers: with lower-case names. peer: address of the client. The body is of SMALL bytes at most.
        """
        app, service = self._app, self._app.service
        path = _PATHS.get(url)
        if path is None or service is None or app.draining or app.traces is not None:
            return None
        received, given = time.monotonic(), dict(headers)
        if len(given) < len(headers) or not _NOT_PLAIN.isdisjoint(given):
            return None
        length = given.get(b"content-length", b"")
        if not length.isdigit() or not 0 < int(length) <= min(SMALL, app.config.max_body_bytes):
            return None
        if given.get(b"content-type") != b"application/json":
            return None
        key = None
        if app.keys and (key := app.keys.find(_text(given.get(b"authorization")))) is None:
            return None
        refusal = service.door.turn_away(caller_by(key, _text(given.get(_RETRY_COUNT)), peer))
        if refusal is None:
            return None
        service.metrics.refused[refusal.code] += 1
        request_id, client_id = new_id(path[1]), client_id_in(_text(given.get(b"x-request-id")))
        app.access_log.write_refusal(request_id, client_id, path[0], refusal.status, refusal.code, received)
        own = b"" if client_id is None else b"x-orcaserve-request-id: %b\r\n" % request_id.encode()
        return _ANSWER % (refusal.retry_after, (client_id or request_id).encode(), own)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
