"""The lines of a batch: requests in, results out. As OpenAI writes them, a JSON object a line.

{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {...}}
{"id": "batch_req_...", "custom_id": "a", "response": {"status_code", "request_id", "body"}, "error": null}
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.http import encode_json
from orcaserve.serving.inside import Reply
from orcaserve.serving.json_body import parse_object

ENDPOINTS = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings")
MAX_LINES = 50_000  # of a batch
MAX_CUSTOM_ID = 512  # characters
MAX_LINE_BYTES = 4 * 2**20
MAX_ERRORS = 100  # lines of an input that are told what is wrong with them


@dataclass(frozen=True, slots=True)
class Line:
    """One request. number: of its line, from 1."""

    number: int
    custom_id: str
    url: str
    body: bytes


class LineError(Exception):
    """A line is no request. param: the member that is wrong."""

    def __init__(self, number: int | None, message: str, param: str | None = None, code: str = "invalid_line") -> None:
        super().__init__(message)
        self.number, self.message, self.param, self.code = number, message, param, code

    @property
    def said(self) -> dict[str, Any]:
        return {"code": self.code, "line": self.number, "message": self.message, "param": self.param}


def read_lines(path: Path, endpoint: str | None) -> Iterator[Line | LineError]:
    """The requests of a file, in order; blank lines are passed over. A file of any size takes one line's memory.

    endpoint: what all of them must ask for; None: each of ENDPOINTS.
    """
    with open(path, "rb") as file:
        number = 0
        while raw := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(raw) > MAX_LINE_BYTES:
                yield LineError(number, f"a line may have {MAX_LINE_BYTES} bytes", code="line_too_long")
                return
            if raw.strip():
                try:
                    yield _line(raw, number, endpoint)
                except LineError as error:
                    yield error


def check_lines(path: Path, endpoint: str | None) -> tuple[int, list[LineError]]:
    """How many requests there are, and what is wrong. Takes seconds for a large file: call it on a thread."""
    n, names, errors = 0, set[str](), list[LineError]()
    for line in read_lines(path, endpoint):
        if isinstance(line, LineError):
            errors.append(line)
        elif line.custom_id in names:
            errors.append(LineError(line.number, "custom_id stands in an earlier line too", "custom_id", "duplicate"))
        else:
            names.add(line.custom_id)
        n += 1
        if n > MAX_LINES:
            errors.append(LineError(None, f"a batch may have {MAX_LINES} requests", code="too_many_requests"))
        if n > MAX_LINES or len(errors) >= MAX_ERRORS:
            break
    if not n:
        errors.append(LineError(None, "the file has no requests", code="empty_file"))
    return n, errors


def result_of(line: Line, reply: Reply) -> bytes:
    """The line that tells what a request was answered with."""
    head = encode_json({"status_code": reply.status, "request_id": reply.request_id})
    # The answer is JSON on one line as it is; it may be large.
    return _result(line, head[:-1] + b',"body":' + reply.body + b"}", b"null")


def result_without_answer(line: Line, code: str, message: str) -> bytes:
    """The line of a request that was not run."""
    return _result(line, b"null", encode_json({"code": code, "message": message}))


def answered_lines(path: Path) -> dict[str, bool]:
    """custom_ids of the results in a file, and whether they were answered with 200. A last line that was not written
    to its end, as by a process that was killed, is removed."""
    found: dict[str, bool] = {}
    if not path.exists():
        return found
    whole = 0
    with open(path, "rb") as file:
        for raw in file:
            try:
                if not raw.endswith(b"\n"):
                    break
                result = json.loads(raw)
                found[result["custom_id"]] = (result["response"] or {}).get("status_code") == 200
            except (ValueError, TypeError, KeyError):
                break
            whole += len(raw)
    if whole != path.stat().st_size:
        os.truncate(path, whole)
    return found


def _result(line: Line, response: bytes, error: bytes) -> bytes:
    names = encode_json({"id": f"batch_req_{secrets.token_hex(12)}", "custom_id": line.custom_id})
    return names[:-1] + b',"response":' + response + b',"error":' + error + b"}\n"


def _line(raw: bytes, number: int, endpoint: str | None) -> Line:
    try:
        value = parse_object(raw)
    except InvalidRequest as error:
        raise LineError(number, error.message.replace("the body", "the line"), None, "invalid_json_line") from error
    custom_id, url, body = value.get("custom_id"), value.get("url"), value.get("body")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID:
        raise LineError(number, f"custom_id must be a string of 1 to {MAX_CUSTOM_ID} characters", "custom_id")
    if value.get("method", "POST") != "POST":
        raise LineError(number, "method must be POST", "method", "invalid_method")
    if url not in (ENDPOINTS if endpoint is None else (endpoint,)):
        wanted = " or ".join(ENDPOINTS) if endpoint is None else "the endpoint of the batch"
        raise LineError(number, f"url must be {wanted}", "url", "invalid_url")
    if not isinstance(body, dict):
        raise LineError(number, "body must be an object", "body")
    if body.get("stream"):
        raise LineError(number, "there are no streams in a batch", "body.stream")
    return Line(number, custom_id, str(url), encode_json(body))
