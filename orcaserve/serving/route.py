"""Route: one method of one path, who answers it, and what the API's description says of it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from orcaserve.serving.fields import Field, Schema
from orcaserve.serving.http import Answer, Exchange
from orcaserve.serving.service import Service

if TYPE_CHECKING:
    from orcaserve.serving.app import App

Handle = Callable[["App", Exchange], Awaitable[None]]
Act = Callable[[Exchange, Service, Mapping[str, Any]], Answer]
"""Makes of a request's body the answer that is still to be run. All that takes long for a large body is done in it: it
may be called on a thread, and awaits nothing. Raises InvalidRequest."""
Read = Callable[[Exchange, bytes], Mapping[str, Any]]
"""Reads a body, on a thread if it is large. Raises InvalidRequest."""

_PARAMETER = re.compile(r"\{(\w+)\}")
OTHER_PROTOCOLS = ("/v2", "/tfs/")  # whose errors are a text alone


@dataclass(frozen=True)
class Operation:
    """What the API's description says of a route.

    fields: of a JSON body (None: there is no body), of which `required` must be there. form: the body is a form.
    answer: schema of the answer 200; content: its type. stream: what an answer with events holds, if there can be one.
    headers: of the request, that are looked at.
    errors: statuses beyond those that any route of this kind may answer.
    """

    summary: str
    answer: Schema
    tag: str
    text: str = ""
    fields: Mapping[str, Field] | None = None
    required: tuple[str, ...] = ()
    form: bool = False
    query: Mapping[str, Field] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: str = "application/json"
    stream: str | None = None
    errors: tuple[int, ...] = ()


@dataclass(frozen=True)
class Route:
    """open: nobody is asked for a key: probes and browsers have none."""

    method: str
    path: str
    handle: Handle
    operation: Operation
    open: bool = False

    @property
    def names(self) -> list[str]:
        """Of the path's parameters."""
        return _PARAMETER.findall(self.path)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        parts = _PARAMETER.split(self.path)
        named = [
            f"(?P<{part}>.+)" if i % 2 else re.escape(part)  # names of models have slashes, and so may ids
            for i, part in enumerate(parts)
        ]
        return re.compile("".join(named), re.DOTALL)


@dataclass(frozen=True)
class Found:
    """The routes of a path by their methods, and what stands in it for the names in braces."""

    routes: Mapping[str, Route]
    params: Mapping[str, str]

    @property
    def allowed(self) -> str:
        methods = [m for method in self.routes for m in ((method, "HEAD") if method == "GET" else (method,))]
        return ", ".join([*methods, "OPTIONS"])

    def of(self, method: str) -> Route | None:
        return self.routes.get("GET" if method == "HEAD" else method)


class Router:
    """Finds routes by path. Of several that fit, the first wins; those without parameters always do."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        by_path: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            assert route.method not in by_path.setdefault(route.path, {}), f"{route.path} stands there twice"
            by_path[route.path][route.method] = route
        self._plain = {path: Found(found, {}) for path, found in by_path.items() if "{" not in path}
        self._patterns = [(next(iter(found.values())).pattern, found) for path, found in by_path.items() if "{" in path]

    def find(self, path: str, raw: str | None = None) -> Found | None:
        """path: decoded; raw: as it was sent, in which a slash that is part of a name is told from others."""
        if (found := self._plain.get(path)) is not None:
            return found
        for written in (path,) if raw is None else (raw, path):
            for pattern, routes in self._patterns:
                if (match := pattern.fullmatch(written)) is not None:
                    params = match.groupdict()
                    return Found(routes, params if raw != written else {n: unquote(v) for n, v in params.items()})
        return None
