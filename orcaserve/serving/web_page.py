"""The web page at `/`: files of the package, read once, and the headers that keep the page to itself.

The page holds no data and needs no key. What it shows it asks for over the API, with the key that its user gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import TYPE_CHECKING

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.http import Exchange
from orcaserve.serving.route import Operation, Route

if TYPE_CHECKING:
    from orcaserve.serving.app import App

MOST_BYTES = 200_000  # of all files together; a test holds it
INDEX = "index.html"
TYPES = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
# Nothing from elsewhere, nothing inline, and in nobody's frame.
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)


@dataclass(frozen=True, slots=True)
class WebFile:
    body: bytes
    content_type: bytes
    etag: bytes

    def is_known(self, if_none_match: str | None) -> bool:
        """Whether a browser that sends this header has the file already."""
        known = [tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")]
        return "*" in known or self.etag.decode() in known


@cache
def web_files() -> Mapping[str, WebFile]:
    """By name: no path that a client sends is ever opened."""
    files = {}
    for entry in resources.files("orcaserve.serving").joinpath("web").iterdir():
        kind = TYPES.get(entry.name.rpartition(".")[2])
        if kind is not None:
            body = entry.read_bytes()
            files[entry.name] = WebFile(body, kind, b'"%s"' % sha256(body).hexdigest()[:32].encode())
    return files


async def index(app: App, exchange: Exchange) -> None:
    await _send(exchange, web_files()[INDEX])


async def file(app: App, exchange: Exchange) -> None:
    found = web_files().get(exchange.params["file"])
    if found is None:
        raise InvalidRequest(None, "the web page has no such file", code="not_found", status=404)
    await _send(exchange, found)


async def _send(exchange: Exchange, found: WebFile) -> None:
    # A browser keeps the file, and asks each time whether it is still the same: another version shows at once.
    headers = [(b"etag", found.etag), (b"cache-control", b"no-cache"), *HEADERS]
    if found.is_known(exchange.header(b"if-none-match")):
        await exchange.send_not_modified(headers)
    else:
        await exchange.send_bytes(200, found.body, found.content_type, headers)


ROUTES = [
    Route(
        "GET",
        "/",
        index,
        Operation(
            "A web page: chats side by side, and the schedule as it runs",
            {"type": "string"},
            "Server",
            "docs/web_page.md describes it. The answer has an `etag`; a browser that has the page already gets a 304.",
            content="text/html",
        ),
        open=True,
    ),
    Route(
        "GET",
        "/web/{file}",
        file,
        Operation(
            "A file of the web page",
            {"type": "string"},
            "Server",
            parameters={"file": "Its name, as the page has it."},
            content="text/javascript",
            errors=(404,),
        ),
        open=True,
    ),
]
