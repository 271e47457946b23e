"""Lines of batches: what is read, what is refused by number, what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orcaserve.serving.batches import lines as module
from orcaserve.serving.batches.lines import (
    Line,
    LineError,
    answered_lines,
    check_lines,
    read_lines,
    result_of,
    result_without_answer,
)
from orcaserve.serving.inside import Reply


def request(name: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": "a"}
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body, **fields}


def written(path: Path, *items: Any) -> Path:
    path.write_bytes(b"".join(i if isinstance(i, bytes) else json.dumps(i).encode() + b"\n" for i in items))
    return path


def test_read(tmp_path: Path) -> None:
    path = written(tmp_path / "in", request("a"), b"\n", request("ü🦙"), b"   \r\n", json.dumps(request("c")).encode())
    assert [(line.number, line.custom_id) for line in read_lines(path, None) if isinstance(line, Line)] == [
        (1, "a"), (3, "ü🦙"), (5, "c"),
    ]  # fmt: skip
    assert check_lines(path, "/v1/completions") == (3, [])


@pytest.mark.parametrize(
    ("item", "param", "code"),
    [
        (b"{\n", None, "invalid_json_line"),
        (b"[]\n", None, "invalid_json_line"),
        (b"\xff\n", None, "invalid_json_line"),
        (b'{"a":NaN}\n', None, "invalid_json_line"),
        (b'{"custom_id":"a","custom_id":"b"}\n', None, "invalid_json_line"),
        ({}, "custom_id", "invalid_line"),
        (request(""), "custom_id", "invalid_line"),
        (request("x" * 513), "custom_id", "invalid_line"),
        (request("x", custom_id=5), "custom_id", "invalid_line"),
        (request("x", method="GET"), "method", "invalid_method"),
        (request("x", url="/v1/audio"), "url", "invalid_url"),
        (request("x", url="/v1/chat/completions"), "url", "invalid_url"),
        (request("x", url=None), "url", "invalid_url"),
        (request("x", body=None), "body", "invalid_line"),
        (request("x", body=[]), "body", "invalid_line"),
        (request("x", body={"stream": True}), "body.stream", "invalid_line"),
        (request("good"), "custom_id", "duplicate"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, item: Any, param: str | None, code: str) -> None:
    path = written(tmp_path / "in", request("good"), item, request("other"))
    n, [error] = check_lines(path, "/v1/completions")
    assert n == 3 and error.said["line"] == 2 and error.said["param"] == param and error.said["code"] == code


def test_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_lines(written(tmp_path / "a"), None)[1][0].code == "empty_file"
    assert check_lines(written(tmp_path / "b", b"\n\n"), None)[1][0].code == "empty_file"
    monkeypatch.setattr(module, "MAX_LINES", 2)
    many = written(tmp_path / "c", *[request(str(i)) for i in range(3)])
    assert check_lines(many, None)[1][0].code == "too_many_requests"
    monkeypatch.setattr(module, "MAX_ERRORS", 2)
    assert len(check_lines(written(tmp_path / "d", *[b"{\n"] * 9), None)[1]) == 2
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 200)
    long = written(tmp_path / "e", request("a"), request("b", body={"prompt": "x" * 300}))
    assert check_lines(long, None)[1][0].code == "line_too_long"


def test_results(tmp_path: Path) -> None:
    line = Line(1, 'a"ü', "/v1/completions", b"{}")
    good = json.loads(result_of(line, Reply(200, "cmpl-1", b'{"id":"cmpl-1","choices":[]}')))
    assert good.pop("id").startswith("batch_req_")
    response = {"status_code": 200, "request_id": "cmpl-1", "body": {"id": "cmpl-1", "choices": []}}
    assert good == {"custom_id": 'a"ü', "response": response, "error": None}
    none = json.loads(result_without_answer(line, "batch_expired", "too late"))
    assert none["response"] is None and none["error"] == {"code": "batch_expired", "message": "too late"}


@pytest.mark.parametrize("tail", [b"", b'{"custom_id":"z"', b"{}\n", b"\n", b"\x00\x00"])
def test_what_a_crash_left(tmp_path: Path, tail: bytes) -> None:
    whole = b"".join(
        result_of(Line(1, name, "/v1/completions", b"{}"), Reply(status, "x", b"{}"))
        for name, status in (("a", 200), ("b", 400))
    )
    path = written(tmp_path / "out", whole, tail)
    assert answered_lines(path) == {"a": True, "b": False} and path.read_bytes() == whole
    assert answered_lines(tmp_path / "none") == {}


def test_a_line_error_has_all_members() -> None:
    assert LineError(3, "no", "url", "x").said == {"code": "x", "line": 3, "message": "no", "param": "url"}
