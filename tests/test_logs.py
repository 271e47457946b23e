"""Logs: a line is a line whatever is in it, and a child logs as its parent does."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve import logs

HOSTILE = [
    "a\n12:00:00 ERROR the server is on fire",
    "a\r\nb",
    "\x1b[2J\x1b[31mred",
    "a\u2028b\u2029c\x85d\x0be\x0cf",
    "\u202egnp.exe",
    "\ud800 half",
    '", "level": "error',
    "\x9b31m",
]
LINE = r"\d\d:\d\d:\d\d [A-Z]+ "


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("orcaserve.test", logging.WARNING, __file__, 1, message, args, None)
    made.__dict__.update(extra)
    return made


@pytest.fixture
def own_root() -> Iterator[None]:
    """Nobody else listens (an earlier test's library or verb may have); warnings go their usual way again."""
    for logger in (logging.getLogger(), logging.getLogger("orcaserve")):
        logger.handlers.clear()
    yield
    logging.captureWarnings(False)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_strangers_say_is_one_line(text: str) -> None:
    line = logs.TextFormatter("engine").format(record("said %s", text))
    assert len(line.splitlines()) == 1 and line.isprintable() and " WARNING engine: said " in line
    line = logs.JsonFormatter().format(record("said %s", text))
    assert len(line.splitlines()) == 1 and line.isascii()
    assert json.loads(line)["message"] == f"said {text}" and json.loads(line)["level"] == "warning"


@given(st.text(alphabet=st.characters(), max_size=40))
def test_any_text_is_one_line(text: str) -> None:
    line = logs.TextFormatter().format(record("%s", text))
    assert len(f"{line}.".splitlines()) == 1 and len(line.encode()) > 0
    assert json.loads(logs.JsonFormatter().format(record("%s", text)))["message"] == text


@pytest.mark.parametrize("text", HOSTILE)
def test_a_traceback_forges_no_line(text: str) -> None:
    try:
        raise ValueError(text)
    except ValueError:
        made = record("it failed", exc_info=sys.exc_info())
    first, *further = logs.TextFormatter().format(made).splitlines()
    assert "it failed" in first and "ValueError" in "".join(further)
    assert all(line.startswith(logs.INDENT) for line in further)
    assert "ValueError" in json.loads(logs.JsonFormatter().format(made))["exception"]


def test_requests_are_named() -> None:
    with logs.about("cmpl-1", "mine"):
        with logs.about("cmpl-2"):
            assert json.loads(logs.JsonFormatter().format(record("x")))["request_id"] == "cmpl-2"
        said = json.loads(logs.JsonFormatter("engine").format(record("x")))
        assert (said["request_id"], said["client_id"], said["process"]) == ("cmpl-1", "mine", "engine")
        assert logs.TextFormatter().format(record("x")).endswith("x (request cmpl-1)")
        assert logs.TextFormatter().format(record("cmpl-1 x")).endswith("WARNING cmpl-1 x")
        assert json.loads(logs.JsonFormatter().format(record("x", request_id="other")))["request_id"] == "other"
    assert "request_id" not in json.loads(logs.JsonFormatter().format(record("x")))


def test_fields_of_a_record() -> None:
    said = json.loads(logs.JsonFormatter().format(record("x", fields={"status": 200, "queue_ms": None})))
    assert said["status"] == 200 and said["queue_ms"] is None
    assert said["time"].endswith("Z") and said["time"][10] == "T" and said["logger"] == "orcaserve.test"


@pytest.mark.parametrize("form", logs.FORMATS)
def test_a_child_is_told_how_to_log(form: str, own_root: None, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    logs.set_up("warning", form, "engine")
    logs.set_up("warning", form, "engine")
    logging.getLogger("orcaserve.x").warning("once")
    assert written.getvalue().count("once") == 1
    assert logs.words_for_child() == ["--log-level", "warning", "--log-format", form]
    assert logs.words_for_child("debug")[1] == "debug"


def test_nobody_has_set_it_up() -> None:
    assert logs.words_for_child("info") == ["--log-level", "info", "--log-format", "text"]


def test_it_imports_the_standard_library_alone() -> None:
    code = (
        "import sys, orcaserve.logs; print([m for m in sys.modules if m.split('.')[0] in ('numpy', 'grpc', 'torch')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
