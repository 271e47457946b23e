"""Terms of requests, admission, deadlines and the way out, over HTTP and an engine that plays a script."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from orcaserve.config import ApiKey
from orcaserve.core import EngineStatus, IterationReport
from orcaserve.core.errors import TOO_LATE

KEYS = (ApiKey("fast", "k-fast", weight=4, priority=-5), ApiKey("slow", "k-slow", priority=3))
FAST, SLOW = {"authorization": "Bearer k-fast"}, {"authorization": "Bearer k-slow"}
GOOD = {"model": "tiny", "prompt": "the", "temperature": 0, "max_tokens": 4}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


def error_of(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["code"] == code
    return error


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", GOOD), ("/v1/chat/completions", CHAT)])
def test_terms_of_fields_and_headers(server: Any, path: str, body: dict[str, Any]) -> None:
    fields = {"user": "ann", "priority": 7, "timeout": 12.5, "cache_salt": "pepper"}
    headers = {"x-slo-ttft-ms": "1500", "x-slo-tpot-ms": "80.5", "x-request-timeout-ms": "9000"}
    assert server.post(path, {**body, **fields}, **headers).status_code == 200
    terms = server.engine.seen[-1].terms
    assert (terms.client, terms.priority, terms.cache_salt, terms.background) == ("ann", 7, "pepper", False)
    assert (terms.timeout, terms.first_token, terms.between_tokens) == (9.0, 1.5, 0.0805)
    assert server.post(path, {**body, "timeout": 3}, **{"x-request-timeout-ms": "9000"}).status_code == 200
    assert server.engine.seen[-1].terms.timeout == 3
    assert server.post(path, body).status_code == 200
    terms = server.engine.seen[-1].terms
    assert (terms.client, terms.priority, terms.timeout, terms.weight) == ("127.0.0.1", 0, None, 1.0)


def test_other_protocols_have_terms_too(server: Any) -> None:
    body = {"text_input": "the", "parameters": {"max_tokens": 3, "user": "bob", "priority": 2}}
    assert server.post("/v2/models/tiny/generate", body, **{"x-slo-ttft-ms": "2000"}).status_code == 200
    terms = server.engine.seen[-1].terms
    assert (terms.client, terms.priority, terms.first_token) == ("bob", 2, 2.0)
    answer = server.post("/v2/models/tiny/generate", body, **{"x-slo-ttft-ms": "soon"})
    assert answer.status_code == 400 and "x-slo-ttft-ms" in answer.json()["error"]


@pytest.mark.parametrize("header", ["x-slo-ttft-ms", "x-slo-tpot-ms", "x-request-timeout-ms"])
@pytest.mark.parametrize("value", ["", "0", "-5", "nan", "inf", "1e3", "5 ms", "0x10", "86400001", "9" * 40, "1.", "٣"])
def test_malformed_headers_are_named(server: Any, header: str, value: str) -> None:
    request = httpx.Request(
        "POST",
        f"{server.base}/v1/completions",
        json=GOOD,
        headers=[(header.encode(), value.encode())],
    )
    error = error_of(server.http.send(request), 400, "invalid_header")
    assert error["param"] == header and header in error["message"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", "high"), ("priority", 1.5), ("priority", True), ("priority", 2**31), ("timeout", "5"),
        ("timeout", True), ("timeout", 0), ("timeout", -1), ("timeout", 86401), ("timeout", []), ("cache_salt", 5),
        ("cache_salt", "x" * 257), ("user", "x" * 257),
    ],
)  # fmt: skip
def test_bad_terms_are_named(server: Any, name: str, value: Any) -> None:
    for path, body in (("/v1/completions", GOOD), ("/v1/chat/completions", CHAT)):
        answer = server.post(path, {**body, name: value})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == name


def test_keys_say_who_asks(other_server: Any) -> None:
    server = other_server(api_keys=KEYS)
    for headers, priority, expected in (
        (FAST, {}, ("fast", 4.0, 0)),
        (FAST, {"priority": -9}, ("fast", 4.0, -5)),
        (FAST, {"priority": -2}, ("fast", 4.0, -2)),
        (SLOW, {}, ("slow", 1.0, 3)),
        (SLOW, {"priority": -9}, ("slow", 1.0, 3)),
        (SLOW, {"priority": 8}, ("slow", 1.0, 8)),
    ):
        assert server.post("/v1/completions", {**GOOD, "user": "me", **priority}, **headers).status_code == 200
        terms = server.engine.seen[-1].terms
        assert (terms.client, terms.weight, terms.priority) == expected
    assert server.post("/v1/completions", GOOD).status_code == 401


def test_a_unix_socket_is_one_client(server: Any) -> None:
    """By what the server is told of the connection: there is no address."""
    from orcaserve.serving.http import Exchange
    from orcaserve.serving.terms import read_terms

    scope = {"method": "POST", "path": "/", "headers": [], "client": None}
    assert read_terms(Exchange(scope, None, None, "x"), {}).client == "unix"  # type: ignore[arg-type]


def test_metrics_keep_no_address(other_server: Any) -> None:
    """Those who have no name are counted together; who says a name has one."""
    server = other_server()
    assert server.post("/v1/completions", GOOD).status_code == 200
    assert server.post("/v1/completions", {**GOOD, "user": "ann"}).status_code == 200
    assert server.engine.seen[-2].terms.client == "127.0.0.1", "fairness still tells them apart"
    counted = [line for line in server.http.get("/metrics").text.splitlines() if "client_tokens_total{" in line]
    assert any('client="ann",kind="generation"' in line and line.endswith(" 4.0") for line in counted)
    assert any('client="none"' in line for line in counted) and not any("127.0.0.1" in line for line in counted)


def test_who_says_that_he_comes_back(server: Any) -> None:
    """The number may be as long as a header may be: it is no reason to fail."""
    from orcaserve.serving.http import Exchange
    from orcaserve.serving.terms import caller_of

    for value, comes_back in (("0", False), ("00", False), ("2", True), ("9" * 5000, True), ("-1", None), ("", None)):
        headers = [(b"x-stainless-retry-count", value.encode())]
        scope = {"method": "POST", "path": "/", "headers": headers, "client": None}
        assert caller_of(Exchange(scope, None, None, "x")).comes_back is comes_back, value  # type: ignore[arg-type]
    assert server.post("/v1/completions", GOOD, **{"x-stainless-retry-count": "9" * 5000}).status_code == 200


def fill(server: Any, pool: ThreadPoolExecutor, n: int) -> list[Any]:
    """So many requests that stay until the engine goes on."""
    server.engine.pause = True
    before = server.engine.n_open
    answers = [pool.submit(httpx.post, f"{server.base}/v1/completions", json=GOOD, timeout=30) for _ in range(n)]
    server.wait_until(lambda: server.engine.n_open == before + n)
    return answers


def test_over_the_bound_is_refused_at_once_and_counted(other_server: Any) -> None:
    server = other_server(max_queued_reqs=2)
    with ThreadPoolExecutor(16) as pool:
        answers = fill(server, pool, 10)
        refused = server.post("/v1/completions", GOOD)
        error = error_of(refused, 429, "overloaded")
        assert error["type"] == "rate_limit_error" and int(refused.headers["retry-after"]) >= 1
        assert "retry-after" not in server.http.get("/health").headers
        for path in ("/v1/chat/completions", "/v2/models/tiny/generate", "/tfs/v1/models/tiny:predict"):
            answer = server.post(path, b"not even JSON: nobody has read it")
            assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1, path
        assert server.post("/tokenize", {"model": "tiny", "prompt": "a b"}).status_code == 200
        with (
            openai.OpenAI(base_url=f"{server.base}/v1", api_key="x", max_retries=0) as client,
            pytest.raises(openai.RateLimitError),
        ):
            client.completions.create(model="tiny", prompt="the")
        server.engine.pause = False
        assert all(answer.result().json()["choices"][0]["text"] for answer in answers)
    assert (
        'orcaserve_requests_refused_total{code="overloaded",model_name="tiny"} 5.0' in server.http.get("/metrics").text
    )
    server.check_well()


def test_the_clients_of_openai_come_back_when_they_are_told(other_server: Any) -> None:
    server = other_server(max_queued_reqs=1)
    with ThreadPoolExecutor(16) as pool, openai.OpenAI(base_url=f"{server.base}/v1", api_key="x") as client:
        answers = fill(server, pool, 9)
        later = pool.submit(client.completions.create, model="tiny", prompt="the", max_tokens=4, temperature=0)
        server.wait_until(lambda: server.service.metrics.refused["overloaded"] == 1)
        server.engine.pause = False
        assert later.result().choices[0].text == answers[0].result().json()["choices"][0]["text"]


def test_prompt_tokens_that_wait_are_bounded(other_server: Any) -> None:
    server = other_server(max_queued_tokens=60)
    with ThreadPoolExecutor(16) as pool:
        answers = fill(server, pool, 8)
        assert server.service.door.waiting_tokens == 8 * server.engine.seen[-1].n_input
        long = {**GOOD, "prompt": [5] * 60}
        error_of(server.post("/v1/completions", long), 429, "overloaded")
        server.engine.pause = False
        assert all(answer.result().status_code == 200 for answer in answers)
        assert server.post("/v1/completions", long).status_code == 200
    assert server.service.door.waiting_tokens == 0


def test_deadlines_that_cannot_be_made_are_refused(other_server: Any) -> None:
    server = other_server()

    def report() -> None:
        for n in range(1, 40):
            status = EngineStatus(10_000 + n, 8, 5, 13, batch_tokens=8, iteration_seconds=0.5, batch_initiations=1)
            server.service._pace.on_report(0, status, time.monotonic() + n)
            server.engine.on_report(IterationReport([], EngineStatus(10_000 + n)))

    server.on_loop(report)  # eight tokens a second
    with ThreadPoolExecutor(16) as pool:
        answers = fill(server, pool, 12)
        answer = server.post("/v1/completions", GOOD, **{"x-slo-ttft-ms": "100"})
        error = error_of(answer, 429, "deadline_unreachable")
        assert error["param"] == "x-slo-ttft-ms" and int(answer.headers["retry-after"]) >= 1
        error_of(server.post("/v1/completions", {**GOOD, "timeout": 0.5}), 429, "deadline_unreachable")
        late = pool.submit(server.post, "/v1/completions", {**GOOD, "timeout": 3600})
        server.wait_until(lambda: server.engine.n_open == 13)
        server.engine.pause = False
        assert late.result().status_code == 200 and all(a.result().status_code == 200 for a in answers)
    assert server.service.metrics.refused["deadline_unreachable"] == 2


def test_what_the_engine_drops_as_late(server: Any) -> None:
    before = server.service.metrics.refused["deadline_exceeded"]
    server.engine.refuse = TOO_LATE
    error_of(server.post("/v1/completions", {**GOOD, "timeout": 5}), 504, "deadline_exceeded")
    error_of(server.post("/v1/completions", {**GOOD, "timeout": 5, "stream": True}), 504, "deadline_exceeded")
    answer = server.post("/v2/models/tiny/generate", {"text_input": "the"})
    assert answer.status_code == 504 and "deadline" in answer.json()["error"]
    server.engine.refuse = None
    server.engine.seconds_per_token = 0.02
    body = json.dumps({**GOOD, "max_tokens": 100, "stream": True}).encode()
    with server.http.stream("POST", "/v1/completions", content=body, headers={"content-type": "application/json"}) as s:
        lines = s.iter_lines()
        next(lines)
        server.engine.refuse = TOO_LATE
        rest = [line for line in lines if line]
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
    assert server.service.metrics.refused["deadline_exceeded"] == before + 4
    assert server.service.metrics.finished["late"] >= 4
    server.engine.refuse = None


def test_ready_says_no_before_requests_are_refused(other_server: Any) -> None:
    server = other_server()
    server.on_loop(server.app.leave)
    for path in ("/ready", "/health", "/v2/health/ready"):
        assert server.http.get(path).status_code == 503
    assert server.http.get("/live").status_code == 200
    assert server.post("/v1/completions", GOOD).status_code == 200
    server.on_loop(server.app.drain)
    error_of(server.post("/v1/completions", GOOD), 503, "stopping")
    server.app.leaving = server.app.draining = False


def test_after_a_storm_the_counts_add_up(other_server: Any) -> None:
    """Clients that leave, are refused, cancelled, late, wrong: whatever was started came to one end."""
    server = other_server(max_queued_reqs=4)
    rng, statuses, lock = random.Random(3), [], threading.Lock()

    def one(n: int) -> None:
        kind = rng.random()
        body = {**GOOD, "max_tokens": rng.randint(1, 60), "n": rng.choice([1, 1, 3])}
        if kind < 0.3:
            raw = json.dumps({**body, "stream": True}).encode()
            head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            head += f"content-length: {len(raw)}\r\n\r\n"
            with socket.create_connection(("127.0.0.1", server.port)) as leaver:
                leaver.sendall(head.encode() + raw)
                time.sleep(rng.random() / 50)
            return
        if kind < 0.4:
            body["max_tokens"] = -1
        if kind > 0.9:
            threading.Timer(0.01, httpx.post, [f"{server.base}/v1/requests/r{n}/cancel"]).start()
        answer = httpx.post(f"{server.base}/v1/completions", json=body, headers={"x-request-id": f"r{n}"}, timeout=30)
        with lock:
            statuses.append(answer.status_code)

    with ThreadPoolExecutor(40) as pool:
        list(pool.map(one, range(300)))
    server.wait_until(lambda: server.engine.n_open == 0 and server.app.n_live == 0)
    metrics = server.service.metrics
    assert metrics.requests_started == sum(metrics.finished.values())
    assert set(statuses) == {200, 400, 429} and statuses.count(429) <= metrics.refused["overloaded"]
    assert {"length", "abort"} <= set(metrics.finished)
    assert server.service.door.n_waiting == 0 and not server.service.door._running
    server.check_well()
