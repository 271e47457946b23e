"""The line of a request: what is in it, what never is, and that nobody forges another."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from orcaserve.config import ApiKey
from orcaserve.logs import JsonFormatter, TextFormatter

SECRET = "sk-very-secret-0123456789"
WORDS = "a text that nobody shall read"


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def told(self) -> list[dict[str, Any]]:
        """As they stand in a log of JSON."""
        return [json.loads(JsonFormatter().format(record)) for record in self.records]

    @property
    def text(self) -> str:
        return "\n".join(TextFormatter().format(record) for record in self.records)


@pytest.fixture
def lines() -> Iterator[Kept]:
    logger, kept = logging.getLogger("orcaserve.requests"), Kept()
    level = logger.level
    logger.addHandler(kept)
    yield kept
    logger.removeHandler(kept)
    logger.setLevel(level)


@pytest.fixture
def asked(other_server: Any, lines: Kept) -> Any:
    return other_server(log_requests=True, api_keys=(ApiKey("own", SECRET),))


def headers(**more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {SECRET}", **more}


def test_a_request_that_was_served(asked: Any, lines: Kept) -> None:
    body = {"model": "tiny", "prompt": WORDS, "max_tokens": 3, "user": WORDS, "n": 2}
    answer = asked.post("/v1/completions", body, **headers(**{"x-request-id": "mine-1"}))
    asked.wait_until(lambda: len(lines.records) == 1)
    [line] = lines.told
    assert line["request_id"] == answer.json()["id"] and line["client_id"] == "mine-1"
    assert answer.headers["x-request-id"] == "mine-1" and answer.headers["x-orcaserve-request-id"] == line["request_id"]
    assert line["route"] == "/v1/completions" and line["method"] == "POST" and line["status"] == 200
    assert line["prompt_tokens"] == answer.json()["usage"]["prompt_tokens"] and line["output_tokens"] == 6
    assert 0 <= line["queue_ms"] <= line["first_token_ms"] <= line["total_ms"]
    assert line["finish_reason"] == "length" and line["error"] is None and line["numbers"].count(",") == 1
    assert line["message"].startswith(
        f"{line['request_id']} client_id=mine-1 method=POST route=/v1/completions status=2"
    )
    for secret in (SECRET, WORDS, "127.0.0.1"):
        assert secret not in json.dumps(line) and secret not in lines.text


def test_streams_and_other_protocols(asked: Any, lines: Kept) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": WORDS}], "max_tokens": 2, "stream": True}
    asked.post("/v1/chat/completions", body, **headers())
    asked.post("/v2/models/tiny/generate", {"text_input": "the", "parameters": {"max_tokens": 4}}, **headers())
    asked.wait_until(lambda: len(lines.records) == 2)
    chat, triton = lines.told
    assert chat["route"] == "/v1/chat/completions" and chat["output_tokens"] == 2
    assert triton["route"] == "/v2/models/{model}/generate" and triton["output_tokens"] == 4 and triton["status"] == 200
    assert chat["request_id"].startswith("chatcmpl-") and chat["finish_reason"] == "length"


def test_what_is_refused(asked: Any, lines: Kept) -> None:
    asked.post("/v1/completions", {"model": "tiny", "prompt": WORDS, "max_tokens": -1}, **headers())
    asked.post("/v1/completions", {"model": "tiny", "prompt": WORDS}, authorization="Bearer wrong-key-0123")
    asked.http.get(f"/v1/{WORDS}/%0a12:00:00 ERROR forged", headers=headers())
    asked.wait_until(lambda: len(lines.records) == 3)
    assert [(line["status"], line["error"]) for line in lines.told] == [
        (400, "invalid_value"), (401, "invalid_api_key"), (404, "not_found")
    ]  # fmt: skip
    assert lines.told[2]["route"] == "none" and "forged" not in lines.text and "wrong-key" not in lines.text
    assert "prompt_tokens" not in lines.told[0]


def test_hostile_ids_and_methods(asked: Any, lines: Kept) -> None:
    for head in (
        b"GET /v1/models HTTP/1.1\r\nx-request-id: a\tb\xe2\x80\xa8c\x9b31m\r\n",
        b"PROPFIND /v1/models HTTP/1.1\r\nx-request-id: " + b"x" * 500 + b"\r\n",
    ):
        asked.send_raw(head + b"host: x\r\nconnection: close\r\nauthorization: Bearer " + SECRET.encode() + b"\r\n\r\n")
    asked.wait_until(lambda: len(lines.records) == 2)
    assert all(line.get("client_id") is None for line in lines.told)
    assert lines.told[1]["method"] == "other" and "PROPFIND" not in lines.text and len(lines.text.splitlines()) == 2


def test_a_client_that_leaves(asked: Any, lines: Kept) -> None:
    asked.engine.pause = True
    body = json.dumps({"model": "tiny", "prompt": "the"}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    )
    with socket.create_connection(("127.0.0.1", asked.port)) as raw:
        raw.sendall(f"{head}authorization: Bearer {SECRET}\r\n\r\n".encode() + body)
        asked.wait_until(lambda: asked.engine.n_open == 1)
    asked.wait_until(lambda: len(lines.records) == 1)
    [line] = lines.told
    assert line["status"] is None and line["finish_reason"] == "abort" and line["queue_ms"] is None
    assert "status=" not in lines.text and "queue_ms=" not in lines.text


def test_probes_and_scrapes_are_told_at_debug_only(asked: Any, lines: Kept) -> None:
    for path in ("/health", "/ready", "/live", "/metrics", "/docs"):
        asked.http.get(path, headers=headers())
    asked.http.get("/v1/models", headers=headers())
    asked.wait_until(lambda: len(lines.records) == 1)
    assert lines.told[0]["route"] == "/v1/models"


def test_nobody_asked(other_server: Any, lines: Kept) -> None:
    server = other_server()
    server.complete(max_tokens=1)
    server.wait_until(lambda: server.app.n_live == 0)
    server.on_loop(lambda: None)  # it has been told of by now
    assert not lines.records
    logging.getLogger("orcaserve.requests").setLevel(logging.DEBUG)
    server.complete(max_tokens=1)
    server.wait_until(lambda: len(lines.records) == 1)  # an answer is with its client before it is told of
    server.http.get("/health")
    server.wait_until(lambda: len(lines.records) == 2)
    assert [line["route"] for line in lines.told] == ["/v1/completions", "/health"]
    assert all(line["level"] == "debug" for line in lines.told)
