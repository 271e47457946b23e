"""Server: the one under load, by its address: what it serves, and one request to it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from orcaserve.core.errors import ConfigError, OrcaServeError
from orcaserve.evaluation.load.stream import Answer, StreamFailed

PATHS = {"completions": "/completions", "chat": "/chat/completions"}
CONNECT_SECONDS = 10.0


class ServerError(OrcaServeError):
    """The server cannot be put under load: it is not there, or does not answer as one should."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where it listens. host: resolved once, so that no request waits for a name."""

    host: str
    port: int
    name: str  # what the host is called
    prefix: str  # of every path, such as /v1
    tls: ssl.SSLContext | None

    @classmethod
    async def find(cls, url: str) -> Address:
        """Of http://HOST:PORT, with or without /v1. Raises ConfigError, or ServerError if nobody listens there."""
        parts = _split(url)
        name, port = str(parts.hostname), parts.port or (443 if parts.scheme == "https" else 80)
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        prefix = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        why: OSError | None = None
        try:
            found = await asyncio.get_running_loop().getaddrinfo(name, port, type=1)
        except OSError as error:
            raise ServerError(f"{url}: there is no host {name}: {error.strerror or error}") from error
        for *_, place in found:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    _, writer = await asyncio.open_connection(str(place[0]), port)
                writer.close()
                return cls(str(place[0]), port, name, prefix, tls)
            except OSError as error:
                why = error
        raise ServerError(f"{url}: nobody answers there: {(why and (why.strerror or why)) or 'no reply in time'}")


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = None
    if not usable:
        raise ConfigError("BASE_URL", f"{url!r} is no address; write http://HOST:PORT")
    return parts


class Server:
    """Takes requests to one endpoint: completions or chat. timeout: seconds from a request to its end, at most."""

    def __init__(self, address: Address, endpoint: str, api_key: str | None, timeout: float) -> None:
        self._address = address
        self._path = PATHS[endpoint]
        self._timeout = timeout
        self._headers = f"Host: {address.name}:{address.port}\r\nUser-Agent: orcaserve-bench\r\nConnection: close\r\n"
        if api_key:
            self._headers += f"Authorization: Bearer {api_key}\r\n"

    async def first_model(self) -> str:
        """Raises ServerError if it lists none."""
        answer = await self._get("/models")
        try:
            return str(json.loads(answer)["data"][0]["id"])
        except (ValueError, LookupError, TypeError) as error:
            raise ServerError("/v1/models lists no model; name one with --model") from error

    def request(self, body: Mapping[str, Any]) -> bytes:
        """The bytes of a request to the endpoint."""
        raw = json.dumps(body, separators=(",", ":")).encode()
        head = f"POST {self._address.prefix}{self._path} HTTP/1.1\r\n{self._headers}"
        return f"{head}Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw

    async def send(self, request: bytes, clock: Callable[[], float], news: Callable[[float], None]) -> Answer:
        """Send it on a new connection and wait for its end. Raises StreamFailed."""
        loop, address = asyncio.get_running_loop(), self._address
        answer: Answer | None = None
        try:
            async with asyncio.timeout(self._timeout):
                try:
                    _, answer = await loop.create_connection(
                        lambda: Answer(request, clock, news), address.host, address.port, ssl=address.tls,
                        server_hostname=address.name if address.tls else None,
                    )  # fmt: skip
                except OSError as error:
                    raise StreamFailed("no connection", error.strerror or str(error)) from error
                await answer.over
                return answer
        except TimeoutError as error:
            raise StreamFailed(f"no end within {self._timeout:g} s") from error
        finally:
            if answer is not None:
                answer.abort()

    async def ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The whole answer to a request that does not stream. Raises StreamFailed."""
        answer = await self.send(self.request(body), lambda: 0.0, lambda _: None)
        try:
            parsed = json.loads(answer.body)
        except ValueError as error:
            raise StreamFailed("the answer is not JSON", repr(bytes(answer.body[:100]))) from error
        if not isinstance(parsed, dict):
            raise StreamFailed("the answer is no object", repr(bytes(answer.body[:100])))
        return parsed

    async def _get(self, path: str) -> bytes:
        request = f"GET {self._address.prefix}{path} HTTP/1.1\r\n{self._headers}\r\n".encode()
        try:
            return bytes((await self.send(request, lambda: 0.0, lambda _: None)).body)
        except StreamFailed as failure:
            raise ServerError(f"GET {self._address.prefix}{path}: {failure} {failure.detail}".rstrip()) from failure
