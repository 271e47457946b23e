"""Logs of all our processes: one line for each thing that is said, as text or as JSON. Standard library only.

Much of what is logged has been touched by strangers (ids, paths, texts of errors). Whatever is in it, it cannot begin a
line of its own, nor move a terminal's cursor: see `plain`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
INDENT = "    "  # before every line of a traceback: no other line begins so
# Control characters (also C1, which some terminals obey), what else ends a line or turns its direction, half pairs.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_about: ContextVar[tuple[str, str | None] | None] = ContextVar("about", default=None)


def plain(text: str) -> str:
    """The text with everything escaped that could end a line, or that a terminal would obey."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


@contextmanager
def about(request_id: str, client_id: str | None = None) -> Iterator[None]:
    """What is logged inside, by this task and those it starts, concerns this request. client_id: as its client calls
    it."""
    token = _about.set((request_id, client_id))
    try:
        yield
    finally:
        _about.reset(token)


class TextFormatter(logging.Formatter):
    """`12:31:07 INFO engine: message`; a request's id follows if the message does not have it. role: whose process
    this is; the endpoint's own lines have none."""

    def __init__(self, role: str = "") -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._role = f"{plain(role)}: " if role else ""

    def format(self, record: logging.LogRecord) -> str:
        message = plain(record.getMessage())
        request_id, _ = _ids(record)
        if request_id is not None and request_id not in message:
            message += f" (request {plain(request_id)})"
        line = f"{self.formatTime(record, self.datefmt)} {record.levelname} {self._role}{message}"
        told = _traceback(self, record)
        return line + "".join(f"\n{INDENT}{plain(further)}" for further in told.splitlines())


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, process, message; where they are known request_id, client_id
    and exception; and what a record brings along as `fields`."""

    def __init__(self, role: str = "") -> None:
        super().__init__()
        self._role = role or "endpoint"

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._role,
            "message": record.getMessage(),
        }
        request_id, client_id = _ids(record)
        if request_id is not None:
            line["request_id"] = request_id
        if client_id is not None:
            line["client_id"] = client_id
        line |= getattr(record, "fields", {})
        if told := _traceback(self, record):
            line["exception"] = told
        return json.dumps(line, default=str)  # in ASCII: every control character is escaped


class _Handler(logging.StreamHandler[TextIO]):
    """To standard error. It keeps the format's name, for children of this process."""

    def __init__(self, role: str, form: str) -> None:
        super().__init__(sys.stderr)
        self.form = form
        self.setFormatter(JsonFormatter(role) if form == "json" else TextFormatter(role))


def set_up(level: str, form: str = "text", role: str = "") -> None:
    """Have this process log to standard error from now on. level: of LEVELS; form: of FORMATS; role: see
    TextFormatter. Call it once, before anything is logged."""
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(handler)
    root.addHandler(_Handler(role, form))
    root.setLevel(level.upper())
    logging.captureWarnings(True)


def words_for_child(level: str | None = None) -> list[str]:
    """Flags that have a child of this process log as this one does, or from another level on."""
    level = level or logging.getLevelName(logging.getLogger("orcaserve").getEffectiveLevel()).lower()
    forms = [handler.form for handler in logging.getLogger().handlers if isinstance(handler, _Handler)]
    return ["--log-level", level, "--log-format", forms[0] if forms else "text"]


def _ids(record: logging.LogRecord) -> tuple[str | None, str | None]:
    """Of the request that it concerns: the server's, and its client's."""
    if (given := getattr(record, "request_id", None)) is not None:
        return str(given), getattr(record, "client_id", None)
    return _about.get() or (None, None)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [] if record.exc_info is None else [formatter.formatException(record.exc_info)]
    if record.stack_info:
        parts.append(record.stack_info)
    return "\n".join(parts)
