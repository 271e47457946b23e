"""Watching over HTTP: `/v1/schedule`, `/v1/requests`, comments that keep streams alive."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from orcaserve.config import ApiKey, ServingConfig
from orcaserve.core.errors import ConfigError
from orcaserve.serving import schedule_watch
from orcaserve.serving.schedule_watch import BETWEEN_HEADERS, MOST_UNREAD, Listener

HEADER = b"data: {"
LINE = '["b",1,1,"",[[1,3]],16,0]'


def get(path: str, *headers: str) -> bytes:
    return ("\r\n".join([f"GET {path} HTTP/1.1", "host: x", *headers]) + "\r\n\r\n").encode()


def read_until(raw: socket.socket, what: bytes, n: int = 1) -> bytes:
    answer = b""
    while answer.count(what) < n:
        part = raw.recv(65536)
        assert part, answer[-300:]
        answer += part
    return answer


def tell(server: Any, *lines: str) -> None:
    server.on_loop(lambda: server.engine.listener("".join(f"{line}\n" for line in lines).encode()))


def test_an_event_for_each_line(server: Any) -> None:
    with server.connection() as raw:
        raw.sendall(get("/v1/schedule"))
        answer = read_until(raw, HEADER)
        assert b"HTTP/1.1 200" in answer and b"content-type: text/event-stream" in answer
        tell(server, LINE, '["r",9,1,7]')
        answer = read_until(raw, b'["r"')
        assert f'data: {LINE}\n\ndata: ["r",9,1,7]\n\n'.encode() in answer
    server.wait_until(lambda: server.engine.listener is None)


def test_the_last_who_leaves_ends_the_watch(server: Any) -> None:
    with server.connection() as one:
        one.sendall(get("/v1/schedule"))
        read_until(one, HEADER)
        with server.connection() as other:
            other.sendall(get("/v1/schedule"))
            read_until(other, HEADER)
            read_until(one, HEADER)  # the header for the late one is everybody's
        server.wait_until(lambda: server.service.schedules[0].n_listeners == 1)
        assert server.engine.listener is not None
    server.wait_until(lambda: server.engine.listener is None)


def test_many_who_come_at_once_share_headers(server: Any) -> None:
    before, begin = server.engine.n_watches, time.monotonic()
    tabs = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(50)]
    for raw in tabs:
        raw.sendall(get("/v1/schedule"))
    for raw in tabs:
        read_until(raw, HEADER)
    seconds = time.monotonic() - begin
    assert server.engine.n_watches - before <= 2 + seconds / BETWEEN_HEADERS
    tell(server, LINE)
    for raw in tabs:
        read_until(raw, LINE.encode())
    assert server.complete(max_tokens=3).status_code == 200
    for raw in tabs:
        raw.close()
    server.wait_until(lambda: server.engine.listener is None)


def test_a_listener_who_does_not_read_is_left_behind_and_goes_on_from_a_header(server: Any) -> None:
    with server.connection() as raw:
        raw.sendall(get("/v1/schedule"))
        read_until(raw, HEADER)
        (listener,) = server.service.schedules[0]._listeners
        line = json.dumps(["x", 1, 1, "y" * 60_000])
        for _ in range(300):  # 18 MB: more than sockets hold
            tell(server, line)
        assert listener.behind and listener._n_bytes <= MOST_UNREAD
        before = server.engine.n_watches
        answer = read_until(raw, b'"part":%d' % (before + 1))
        assert answer.count(b'["x"') < 200
        server.wait_until(lambda: not listener.behind)
        tell(server, LINE)
        read_until(raw, LINE.encode())


def test_one_who_never_reads_is_cut(server: Any) -> None:
    with server.connection() as raw:
        raw.sendall(get("/v1/schedule"))
        server.wait_until(lambda: server.engine.listener is not None)
        line = json.dumps(["x", 1, 1, "y" * 60_000])
        for _ in range(300):
            tell(server, line)
        server.wait_until(lambda: server.service.schedules[0].n_listeners == 0, 10)  # write_timeout is 1 s


def test_too_many(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_watch, "MAX_LISTENERS", 1)
    with server.connection() as raw:
        raw.sendall(get("/v1/schedule"))
        read_until(raw, HEADER)
        refused = server.http.get("/v1/schedule")
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "too_many_listeners"
        assert "at most 1 may watch" in refused.json()["error"]["message"]


def test_who_comes_is_known_before_the_answer_begins(server: Any) -> None:
    """Else the end would not reach him, and too many who come at once would all be let in."""
    watch, sent = server.service.schedules[0], list[dict[str, Any]]()

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        assert watch.n_listeners == 1
        if not sent:
            watch.end()  # as the server begins to stop
        sent.append(message)

    async def play() -> None:
        scope = {"type": "http", "method": "GET", "path": "/v1/schedule", "headers": [], "query_string": b""}
        await asyncio.wait_for(server.app(scope, receive, send), 10)

    asyncio.run_coroutine_threadsafe(play(), server.loop).result(20)
    assert watch.n_listeners == 0 and sent[-1]["more_body"] is False


@pytest.mark.parametrize("number", ["1", "-1", "x", "00000000000", "1e0", "٣"])
def test_a_replica_that_is_not_there(server: Any, number: str) -> None:
    answer = server.http.get("/v1/schedule", params={"replica": number})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "replica"
    assert "there is only replica 0" in answer.json()["error"]["message"]


def test_head_ends_at_once(server: Any) -> None:
    answer = server.http.head("/v1/schedule")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
    assert server.engine.listener is None


def test_the_key_is_asked_for(other_server: Callable[..., Any]) -> None:
    server = other_server(api_keys=(ApiKey("own", "k"),))
    for path in ("/v1/schedule", "/v1/requests"):
        assert server.http.get(path).status_code == 401
    assert server.http.get("/v1/requests", headers={"authorization": "Bearer k"}).status_code == 200


def test_draining_ends_it_and_does_not_wait_for_it(other_server: Callable[..., Any]) -> None:
    server = other_server()
    with server.connection() as reads, server.connection() as deaf:
        for raw in (reads, deaf):
            raw.sendall(get("/v1/schedule"))
        read_until(reads, HEADER)
        server.wait_until(lambda: server.service.schedules[0].n_listeners == 2)
        assert server.app.n_live == 0 and server.app.idle.is_set(), "nobody has to wait for them"
        line = json.dumps(["x", 1, 1, "y" * 60_000])
        for _ in range(300):
            tell(server, line)
            reads.recv(2**20)
        server.on_loop(server.app.drain)
        rest = b""
        while part := reads.recv(2**20):
            rest += part
            if rest.endswith(b"0\r\n\r\n"):
                break
        server.wait_until(lambda: server.service.schedules[0].n_listeners == 0)
        assert server.http.get("/v1/schedule").status_code == 503


def test_requests_that_are_under_way(server: Any) -> None:
    server.engine.pause = True
    body = json.dumps({"model": "tiny", "prompt": ["the", "quick fox"], "max_tokens": 20, "priority": 0}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    with server.connection() as raw:
        raw.sendall(head.encode() + b"\r\n\r\n" + body)
        server.wait_until(lambda: server.engine.n_open == 2)
        listed = server.http.get("/v1/requests").json()
        assert (listed["object"], listed["total"], listed["has_more"]) == ("list", 2, False)
        one, two = listed["data"]
        assert one["id"] == two["id"] and one["id"].startswith("cmpl-")
        assert (one["choice"], two["choice"]) == (0, 1) and two["number"] == one["number"] + 1
        assert one["endpoint"] == "/v1/completions" and one["state"] == "increment"
        assert (one["output_tokens"], one["slots_reserved"], one["replica"], one["priority"]) == (0, 32, 0, 0)
        assert 0 <= one["age_seconds"] < 10 and one["why_waiting"] == ""
        server.engine.n_left_out = 7
        more = server.http.get("/v1/requests").json()
        assert more["has_more"] is True and more["total"] == 9
        server.engine.n_left_out = 0
        assert server.http.post(f"/v1/requests/{one['id']}/cancel").status_code == 200
        read_until(raw, b'"finish_reason":"abort"', 2)
    assert server.http.get("/v1/requests").json()["data"] == []
    assert not server.service.live


def test_one_whose_client_has_left_has_no_id(server: Any) -> None:
    server.engine.pause = True
    cancel, server.engine.cancel = server.engine.cancel, lambda request_id: None  # its batch is not back
    try:
        with server.connection() as raw:
            body = b'{"model":"tiny","prompt":"the"}'
            head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: "
            raw.sendall(head + b"%d\r\n\r\n" % len(body) + body)
            server.wait_until(lambda: server.engine.n_open == 1)
        server.wait_until(lambda: not server.service.live)
        (row,) = server.http.get("/v1/requests").json()["data"]
        assert row["id"] is None and row["endpoint"] is None and row["age_seconds"] == 0.5
    finally:
        server.engine.cancel = cancel
        for request_id in list(server.engine._live):
            server.on_loop(lambda request_id=request_id: cancel(request_id))


def test_silent_streams_get_comments(other_server: Callable[..., Any]) -> None:
    server = other_server(sse_keep_alive=0.2)
    server.engine.seconds_per_token = 0.01
    with server.connection() as schedule, server.connection() as completion:
        schedule.sendall(get("/v1/schedule"))
        body = b'{"model":"tiny","prompt":"the","max_tokens":100,"stream":true,"temperature":0}'
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: "
        completion.sendall(head + b"%d\r\n\r\n" % len(body) + body)
        first = read_until(completion, b"data: ", 3)
        assert b": keep-alive" not in first
        server.engine.pause = True
        read_until(completion, b": keep-alive\n\n", 3)
        server.engine.pause = False
        assert b"[DONE]" in read_until(completion, b"[DONE]")
        read_until(schedule, b": keep-alive\n\n", 2)
        waiting = server.connection()
        with waiting as raw:
            server.engine.pause = True
            raw.sendall(head + b"%d\r\n\r\n" % len(body) + body)
            raw.settimeout(0.6)
            with pytest.raises(TimeoutError):
                raw.recv(1)  # it has not begun: its status is still to be chosen


def test_without_an_interval_there_are_none(other_server: Callable[..., Any]) -> None:
    server = other_server(sse_keep_alive=0)
    with server.connection() as raw:
        raw.sendall(get("/v1/schedule"))
        read_until(raw, HEADER)
        assert server.app._keeping_alive is None
        raw.settimeout(0.3)
        with pytest.raises(TimeoutError):
            raw.recv(1)


@pytest.mark.parametrize("seconds", [-1.0, 0.05, 3601.0, float("nan"), float("inf")])
def test_intervals_that_cannot_be(seconds: float) -> None:
    with pytest.raises(ConfigError, match="--sse-keep-alive-interval: must be 0"):
        ServingConfig(sse_keep_alive=seconds)


def test_what_waits_for_a_listener_is_bounded() -> None:
    async def play() -> None:
        listener = Listener()
        listener.put(b"line", begins=False)
        listener.put(b"header 1,", begins=True)
        listener.put(b"line", begins=False)
        assert await listener.take() == b"header 1,line" and not listener.behind
        listener.put(b"y" * MOST_UNREAD, begins=False)
        listener.put(b"line", begins=False)
        assert listener.behind and await listener.take() == b"", "woken, to ask for a header"
        listener.put(b"line", begins=False)
        listener.put(b"z" * MOST_UNREAD * 2, begins=True)
        assert await listener.take() == b"z" * MOST_UNREAD * 2, "a header comes whatever its size"
        listener.end()
        assert await listener.take() == b""

    asyncio.run(play())
