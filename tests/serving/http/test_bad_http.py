"""Group HTTP: content types, bodies that are no JSON object, limits, slow and leaving clients, routes, keys."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
import struct
import time
from typing import Any

import httpx
import pytest

from orcaserve.config import ApiKey
from orcaserve.core.errors import CRASHED_TWICE, ENGINE_LOST, SERVER_STOPPING

GOOD = {"model": "tiny", "prompt": "the", "max_tokens": 3}


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def request_bytes(body: bytes, *headers: str, path: str = "/v1/completions", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", f"content-length: {size}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def stream_request(**fields: Any) -> bytes:
    return request_bytes(json.dumps({**GOOD, "stream": True, "max_tokens": 100, **fields}).encode())


@pytest.mark.parametrize(
    ("content_type", "good"),
    [
        ("application/json", True),
        ("application/json; charset=utf-8", True),
        ("application/JSON", True),
        ('Application/Json ; charset="UTF-8"', True),
        (None, False),
        ("", False),
        ("text/plain", False),
        ("application/json; charset=utf-16", False),
        ("application/x-www-form-urlencoded", False),
        ("multipart/form-data; boundary=x", False),
        ("text/json", False),
    ],
)
def test_b33_content_type(server: Any, content_type: str | None, good: bool) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    answer = server.http.post("/v1/completions", content=json.dumps(GOOD).encode(), headers=headers)
    if good:
        assert answer.status_code == 200
    else:
        assert error_of(answer, 415)["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"true",
        json.dumps(GOOD).encode()[:-1],
        b'{"model":"tiny","prompt":"a","prompt":"b"}',
        b'{"model":"tiny","logit_bias":{"1":1,"1":2}}',
        b"[" * 20_000,
        b'{"a":' * 1000 + b"1" + b"}" * 1000,
        b'{"a":' + b"[" * 64 + b"]" * 64 + b"}",
        b'{"model":"tiny","prompt":"\xff\xfe"}',
        b"\xef\xbb\xbf" + json.dumps(GOOD).encode(),
        json.dumps(GOOD).encode("utf-16"),
        gzip.compress(json.dumps(GOOD).encode(), mtime=0),
        b"{'model':'tiny'}",
        b'{"model":"tiny",}',
        b'{"a":1} x',
        b'{"n":' + b"9" * 5000 + b"}",
        b"model=tiny",
        b"\x00",
    ],
)
def test_b34_not_a_json_object(server: Any, body: bytes) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
        error_of(server.post(path, body), 400)


def test_b34_depth_just_allowed(server: Any) -> None:
    body = b'{"model":"tiny","max_tokens":1,"prompt":"[[[{{{","x":' + b"[" * 63 + b"]" * 63 + b"}"
    assert server.post("/v1/completions", body).status_code == 200


def test_b34_declared_compression(server: Any) -> None:
    body = gzip.compress(json.dumps(GOOD).encode())
    error_of(server.post("/v1/completions", body, **{"content-encoding": "gzip"}), 415)


def test_b34_limit_of_the_body(server: Any) -> None:
    def padded(size: int) -> bytes:
        body = json.dumps({**GOOD, "pad": ""}).encode()
        return body[:-2] + b"a" * (size - len(body)) + body[-2:]

    assert server.post("/v1/completions", padded(100_000)).status_code == 200
    assert error_of(server.post("/v1/completions", padded(100_001)), 413)["code"] == "body_too_large"
    error_of(server.post("/v1/completions", padded(3_000_000)), 413)
    chunks = (b"a" * 10_000 for _ in range(1000))
    answer = server.http.post("/v1/completions", content=chunks, headers={"content-type": "application/json"})
    error_of(answer, 413)


def test_b34_a_gigabyte_is_refused_unread(server: Any) -> None:
    start = time.monotonic()
    with server.connection() as raw:
        raw.sendall(request_bytes(b"{", length=10**9))
        assert b" 413 " in raw.recv(65536)
    assert time.monotonic() - start < 10, "long before the time for a body is over"


@pytest.mark.parametrize("head", ["content-length: 500", "transfer-encoding: chunked"])
def test_b34_unfinished_body(server: Any, head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orcaserve.serving.http.DRAIN_SECONDS", 0.3)
    start = time.monotonic()
    raw = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{head}\r\n\r\n".encode()
    answer = server.send_raw(raw + (b'5\r\n{"mod' if "chunked" in head else b'{"mod'))
    assert b" 408 " in answer and b"connection: close" in answer.lower()
    assert 0.9 < time.monotonic() - start < 5


def test_b34_wrong_length(server: Any) -> None:
    body = json.dumps(GOOD).encode()
    assert b" 400 " in server.send_raw(request_bytes(body, length=len(body) - 5))


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 50,
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /" + b"\xff\xfe" + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_not_http(server: Any, raw: bytes) -> None:
    answer = server.send_raw(raw + b"")
    assert answer.startswith(b"HTTP/1.1 4") and b'"error"' in answer


@pytest.mark.parametrize("raw", [b"x: " + b"a" * 20_000, b"\r\n".join(b"x%d: y" % i for i in range(3000))])
def test_header_limit(server: Any, raw: bytes) -> None:
    assert b" 431 " in server.send_raw(b"GET /live HTTP/1.1\r\nhost: x\r\n" + raw + b"\r\n\r\n")
    assert b" 431 " in server.send_raw(b"GET /live HTTP/1.1\r\nhost: x\r\n" + raw)  # and without its end
    assert b" 431 " in server.send_raw(b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n")


def test_slow_header(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orcaserve.serving.http_protocol.HEADER_SECONDS", 0.3)
    assert b" 408 " in server.send_raw(b"GET /live HTTP/1.1\r\nhost:")
    assert server.send_raw(b"") == b""  # nothing at all: closed without a word
    with httpx.Client(base_url=server.base) as client:  # a connection that is used again
        client.get("/live")
        time.sleep(0.5)
        assert client.get("/live").status_code == 200


def test_small_answers_are_not_held_back(server: Any) -> None:
    """Each answer is two writes; with Nagle's algorithm the second would wait 40 ms for an acknowledgement."""
    seconds = []
    for _ in range(20):
        start = time.monotonic()
        server.http.get("/live")
        seconds.append(time.monotonic() - start)
    assert min(seconds) < 0.03  # the quickest of them: a busy machine can only make some slow


@pytest.mark.parametrize(
    "second",
    [
        request_bytes(json.dumps(GOOD).encode()),
        request_bytes(b"", "x: " + "a" * 20_000),
        b"GET /live HTTP/1.1\r\n\r\n" * 3,
        b"what is this\r\n\r\n",
    ],
    ids=["request", "long header", "several", "no request"],
)
def test_what_is_sent_before_the_answer_is_complete_makes_it_the_last(server: Any, second: bytes) -> None:
    whole = server.complete(max_tokens=3).json()["choices"][0]["text"]
    answer = server.send_raw(request_bytes(json.dumps(GOOD).encode()) + second)
    assert answer.count(b"HTTP/1.1") == answer.count(b"HTTP/1.1 200") == answer.count(b"connection: close") == 1
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"] == whole
    server.engine.seconds_per_token = 0.01
    with server.connection() as raw:  # in the middle of a stream
        raw.sendall(stream_request(max_tokens=20))
        text = raw.recv(65536)
        raw.sendall(second)
        while part := raw.recv(65536):
            text += part
    assert text.count(b"HTTP/1.1") == 1 and text.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert len(server.engine.seen) == 3


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_pipelines_and_leaves_is_cancelled(server: Any, how: str) -> None:
    server.engine.pause = True  # nothing is written, which would tell as well
    with server.connection() as raw:
        raw.sendall(stream_request() + stream_request())
        server.wait_until(lambda: server.engine.n_open == 1)
        leave(raw, how)
        assert server.wait_until(lambda: server.engine.n_open == 0) < 0.5
    assert len(server.engine.seen) == len(server.engine.cancelled) == 1


CHUNKED = (
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
)


def in_two(server: Any, first: bytes, second: bytes) -> bytes:
    """The answer to what is sent with a pause, so that it is read in two."""
    with server.connection() as raw:
        raw.sendall(first)
        time.sleep(0.05)
        raw.sendall(second)
        return bytes(raw.recv(65536))


@pytest.mark.parametrize("tail", [b"x: y\r\n\r\n", b"x: y\r\n" * 5000, b"x" * 40_000, b"x: " + b"y" * 40_000])
def test_trailers_are_refused(server: Any, tail: bytes) -> None:
    body = json.dumps(GOOD).encode()
    answer = in_two(server, CHUNKED + b"%x\r\n%s\r\n0\r\n" % (len(body), body), tail)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431")) and answer.count(b"HTTP/1.1") == 1
    assert server.engine.seen == []


def test_extensions_of_chunks_are_limited(server: Any) -> None:
    assert in_two(server, CHUNKED + b"1;a=b\r\n{\r\n5;", b"a" * 40_000).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize(
    ("method", "path", "header", "status"),
    [
        ("POST", "/v1/completions", "content-type: text/plain", 415),
        ("POST", "/nowhere", "x: y", 404),
        ("DELETE", "/v1/completions", "x: y", 405),
        ("GET", "/live", "x: y", 200),
    ],
)
@pytest.mark.parametrize("length", ["content-length: 500", "transfer-encoding: chunked"])
def test_an_answer_before_the_end_of_the_body_is_the_last(
    server: Any, method: str, path: str, header: str, status: int, length: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orcaserve.serving.http.DRAIN_SECONDS", 0.3)
    start = time.monotonic()
    answer = server.send_raw(f"{method} {path} HTTP/1.1\r\nhost: x\r\n{header}\r\n{length}\r\n\r\n5\r\nhe".encode())
    assert answer.startswith(b"HTTP/1.1 %d" % status) and b"connection: close" in answer
    assert time.monotonic() - start < 2
    server.wait_until(lambda: server.app.n_live == 0)


def test_blank_lines_do_not_hold_a_connection(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orcaserve.serving.http_protocol.HEADER_SECONDS", 0.3)
    with server.connection() as raw:
        raw.sendall(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        raw.recv(65536)
        start = time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() - start < 2:
                raw.sendall(b"\r\n")
                time.sleep(0.05)
        assert time.monotonic() - start < 1


def test_expect_continue(server: Any) -> None:
    with server.connection() as raw:
        raw.sendall(request_bytes(b"", "expect: 100-continue", length=len(json.dumps(GOOD))))
        assert raw.recv(1000).startswith(b"HTTP/1.1 100")
        raw.sendall(json.dumps(GOOD).encode())
        assert raw.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/completions", "POST, OPTIONS"),
        ("DELETE", "/v1/chat/completions", "POST, OPTIONS"),
        ("PUT", "/v1/completions", "POST, OPTIONS"),
        ("HEAD", "/v1/completions", "POST, OPTIONS"),
        ("POST", "/v1/models", "GET, HEAD, OPTIONS"),
        ("POST", "/health", "GET, HEAD, OPTIONS"),
        ("DELETE", "/v1/models/tiny", "GET, HEAD, OPTIONS"),
        ("PUT", "/v1/files", "POST, GET, HEAD, OPTIONS"),
        ("POST", "/v1/files/file-1", "GET, HEAD, DELETE, OPTIONS"),
        ("GET", "/v1/requests/x/cancel", "POST, OPTIONS"),
    ],
)
def test_b36_wrong_method(server: Any, method: str, path: str, allow: str) -> None:
    answer = server.http.request(method, path)
    assert answer.status_code == 405 and answer.headers["allow"] == allow
    if method != "HEAD":
        assert error_of(answer, 405)["code"] == "method_not_allowed"
    answer = server.http.request("OPTIONS", path)
    assert answer.status_code == 200 and answer.content == b"" and answer.headers["allow"] == allow
    assert not any(name.startswith("access-control") for name in answer.headers)  # pages of others may not


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/completions/", "/v1/models/", "/etc/passwd", "/V1/COMPLETIONS"])
def test_b36_unknown_path(server: Any, path: str) -> None:
    error_of(server.http.get(path), 404)
    error_of(server.post(path, GOOD), 404)


def test_api_key_guards_every_path_but_the_probes(other_server: Any) -> None:
    from orcaserve.serving.routes import ROUTES

    server = other_server(api_keys=(ApiKey("own", "s3cret"),))
    open_paths = {"/live", "/ready", "/health", "/docs", "/openapi.json", "/v2/health/live", "/v2/health/ready"}
    open_paths |= {"/", "/web/{file}"}
    assert {route.path for route in ROUTES if route.open} == open_paths
    paths = [(re.sub(r"{model}", "tiny", re.sub(r"{version}", "1", r.path)), r.method, r.open) for r in ROUTES]
    paths += [("/x", "GET", False), ("/v2/x", "GET", False), ("/v1/models", "OPTIONS", False), ("/live", "PUT", False)]
    for path, method, is_open in paths:
        path = path.replace("{id}", "none").replace("{file}", "main.js")
        answer = server.http.request(method, path)
        if is_open:
            assert answer.status_code == 200
            continue
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer", (method, path)
        error = answer.json()["error"]
        assert isinstance(error, str) if path.startswith(("/v2", "/tfs")) else error["code"] == "invalid_api_key"
        for wrong in ("Bearer", "Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "s3cret", "Bearer ß"):
            headers = {"authorization": wrong.encode()}
            assert server.http.request(method, path, headers=headers).status_code == 401
        with server.http.stream(method, path, headers={"authorization": "bearer s3cret"}) as right:  # one has no end
            assert right.status_code in (200, 400, 404, 405, 415), (method, path)
    assert server.engine.seen == []


def test_loading_and_stopping(other_server: Any) -> None:
    server = other_server()
    service, server.app.service = server.app.service, None
    for answer in (
        server.http.get("/health"),
        server.http.get("/ready"),
        server.complete(),
        server.http.get("/v1/models"),
    ):
        error_of(answer, 503)
        assert answer.headers["retry-after"]
    assert server.http.get("/live").status_code == 200
    server.app.service = service
    server.on_loop(server.app.drain)
    for answer in (server.http.get("/health"), server.complete()):
        error_of(answer, 503)


def test_health_means_progress(other_server: Any) -> None:
    server = other_server()
    server.service.stall_timeout = 0.2
    time.sleep(0.4)
    assert server.http.get("/health").status_code == 200  # idle is not stalled
    server.engine.pause = True
    with server.connection() as raw:
        raw.sendall(stream_request())
        server.wait_until(lambda: server.engine.n_open == 1)
        assert server.http.get("/health").status_code == 200  # it has just begun
        time.sleep(0.4)
        assert "progress" in error_of(server.http.get("/health"), 503)["message"]
        server.engine.pause = False
        time.sleep(0.1)
        assert server.http.get("/health").status_code == 200


def test_while_an_engine_is_replaced(server: Any) -> None:
    """Not ready, but healthy: requests are taken, and wait."""
    server.engine.present, server.engine.pause = False, True
    try:
        assert "replaced" in error_of(server.http.get("/ready"), 503)["message"]
        assert server.http.get("/health").json() == {"status": "recovering"}
        assert server.http.get("/metrics").status_code == server.http.get("/v1/models").status_code == 200
    finally:
        server.engine.present, server.engine.pause = True, False
    assert server.http.get("/health").json() == server.http.get("/ready").json() == {"status": "ready"}


def test_restarts_are_counted_and_iterations_go_on(other_server: Any) -> None:
    server = other_server()

    def counted(name: str) -> float:
        line = next(x for x in server.http.get("/metrics").text.splitlines() if x.startswith(f"{name}_total{{"))
        return float(line.split()[-1])

    server.complete(max_tokens=6)
    assert (counted("orcaserve_engine_restarts"), counted("orcaserve_iterations")) == (0, 6)
    server.loop.call_soon_threadsafe(server.engine.on_restart)
    server.wait_until(lambda: counted("orcaserve_engine_restarts") == 1)
    assert counted("orcaserve_iterations") == 6
    server.engine.iteration = 0
    server.complete(max_tokens=6)
    assert counted("orcaserve_iterations") == 12


@pytest.mark.parametrize("code", ["engine_crashed", "stopping", "engine_error"])
def test_what_clients_are_told_of_a_lost_engine(server: Any, code: str) -> None:
    errors = {"engine_crashed": CRASHED_TWICE, "stopping": SERVER_STOPPING, "engine_error": ENGINE_LOST}
    server.engine.refuse = errors[code]
    status = 500 if code == "engine_crashed" else 503
    assert error_of(server.complete(), status)["code"] == code
    server.engine.refuse = None


@pytest.mark.parametrize("stream", [False, True])
def test_b30_invalid_or_failed_before_the_first_token(server: Any, stream: bool) -> None:
    error_of(server.complete(stream=stream, temperature=9), 400)
    server.engine.refuse = "the engine refuses"
    error = error_of(server.complete(stream=stream), 503)
    assert error["message"] == "the engine refuses" and error["type"] == "server_error"
    server.engine.refuse = None


def test_b30_failure_in_the_middle(server: Any) -> None:
    import openai

    server.engine.fail_after = 3
    error_of(server.complete(max_tokens=9), 500)
    answer = server.post("/v1/completions", {**GOOD, "max_tokens": 9, "stream": True})
    frames = [frame for frame in answer.text.split("\n\n") if frame]
    assert answer.status_code == 200 and len(frames) >= 2
    assert json.loads(frames[-1][6:])["error"]["message"] == "the worker was lost"
    assert (
        all(json.loads(f[6:])["choices"][0]["finish_reason"] is None for f in frames[:-1])
        and "[DONE]" not in answer.text
    )
    with (
        openai.OpenAI(base_url=f"{server.base}/v1", api_key="x", max_retries=0) as client,
        client.completions.create(model="tiny", prompt="a", stream=True, max_tokens=9) as stream,
        pytest.raises(openai.APIError, match="worker was lost"),
    ):
        list(stream)
    server.engine.fail_after = None


def test_one_of_several_choices_fails(server: Any) -> None:
    server.engine.fail_after = 3
    error_of(server.complete(n=4, max_tokens=9), 500)
    text = server.post("/v1/completions", {**GOOD, "n": 4, "max_tokens": 9, "stream": True}).text
    assert text.count('"error"') == 1 and "[DONE]" not in text
    server.engine.fail_after = None


def leave(raw: socket.socket, how: str) -> None:
    if how == "reset":
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "half":
        raw.shutdown(socket.SHUT_WR)
    else:
        raw.close()


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("when", ["streaming", "waiting", "whole"])
def test_b37_a_client_that_leaves_is_cancelled(server: Any, how: str, when: str) -> None:
    engine = server.engine
    engine.seconds_per_token = 0.02
    engine.pause = when == "waiting"
    with server.connection() as raw:
        raw.sendall(request_bytes(json.dumps({**GOOD, "max_tokens": 100, "stream": when != "whole", "n": 2}).encode()))
        server.wait_until(lambda: engine.n_open == 2)
        if when == "streaming":
            assert b"data:" in raw.recv(65536) + raw.recv(65536)
        leave(raw, how)
        assert server.wait_until(lambda: engine.n_open == 0) < 0.5
    assert len(engine.cancelled) == 2
    engine.pause = False


def test_b37_a_normal_end_sends_no_cancel(server: Any) -> None:
    server.complete(max_tokens=3)
    server.events("/v1/completions", {"prompt": "a", "max_tokens": 3, "n": 2})
    assert server.engine.cancelled == []


def test_b37_many_early_disconnects_leave_nothing(server: Any) -> None:
    for i in range(150):
        with server.connection() as raw:
            raw.sendall(stream_request(stream=i % 3 != 0))
            if i % 3 == 1:
                raw.recv(65536)
            if i % 2:
                leave(raw, "reset")
    server.wait_until(lambda: server.engine.n_open == 0)
    metrics = server.service.metrics
    assert metrics.requests_started == sum(metrics.finished.values())


@pytest.fixture
def wordy(server: Any) -> Any:
    """The server, with an engine that says the longest token only, as fast as it can. Its write timeout is 1 s."""
    before = server.engine.script
    long = max(range(3, server.tokenizer.vocab_size), key=lambda i: len(server.tokenizer.decode([i])))
    server.engine.script = lambda request, n: long
    server.engine.seconds_per_token = 0.0
    listener = server._listener  # the sockets it accepts get the size of its buffer
    size = listener.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    yield server
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size // 2)
    server.engine.script = before


MUCH = {**GOOD, "n": 128, "prompt": [5], "max_tokens": 127}


@pytest.mark.parametrize("case", ["stream", "whole", "second request", "small answers", "half closed"])
def test_b37_a_client_that_never_reads_is_dropped(wordy: Any, case: str) -> None:
    """Text that fills every buffer between us, or only ours."""
    server = wordy
    connections = server._server.server_state.connections
    others = len(connections)
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", server.port))
        server.wait_until(lambda: len(connections) == others + 1)
        much = request_bytes(json.dumps({**MUCH, "stream": case in ("stream", "half closed")}).encode())
        if case == "small answers":
            for _ in range(3000):
                raw.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
                time.sleep(0.001)
                if len(connections) == others:
                    break
        else:
            raw.sendall(much)
        if case == "second request":
            server.wait_until(lambda: server.service.metrics.finished["length"] >= 128)
            raw.sendall(much)
        if case == "half closed":
            server.wait_until(lambda: len(server.engine.seen) == 128)
            raw.shutdown(socket.SHUT_WR)
        took = server.wait_until(lambda: len(connections) == others, 10)
        assert took < 4  # not when the connection has been idle for long
    server.wait_until(lambda: server.app.n_live == 0 and server.engine.n_open == 0)


def test_a_client_that_reads_slowly_is_not_dropped(wordy: Any) -> None:
    """More than the write timeout for all of the answer, but never for one piece of it."""
    answer = b""
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        raw.connect(("127.0.0.1", wordy.port))
        raw.sendall(request_bytes(json.dumps({**MUCH, "prompt": [[5]] * 8}).encode(), "connection: close"))
        answer += raw.recv(1000)
        start = time.monotonic()
        while part := raw.recv(25_000):
            answer += part
            time.sleep(0.05)
    assert time.monotonic() - start > 1.5
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head and len(json.loads(body)["choices"]) == 1024


def test_other_streams_go_on_beside_a_stalled_one(server: Any) -> None:
    with server.connection() as raw:
        raw.sendall(stream_request())
        for _ in range(3):
            assert server.complete(max_tokens=6).json()["choices"][0]["text"] == server.known_text
