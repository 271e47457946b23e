"""SCHED: clients that leave, at any moment and in any way; one request alone and among others."""

from __future__ import annotations

import json
import re
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from case_server import CHAT, COMPLETIONS, Server
from reciting import CONTEXT

N_ROUNDS = 500
MUCH = CONTEXT - 8  # tokens


def leave(connection: socket.socket, how: str) -> None:
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "half":
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(5)
        while connection.recv(65536):  # the server closes: nobody is left to answer
            pass
    connection.close()


def requested(server: Server, path: str = COMPLETIONS, **fields: Any) -> socket.socket:
    most = MUCH if path == COMPLETIONS else ...  # of a chat: what is left
    body = json.dumps(server.body(path, max_tokens=most, **fields)).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    host, port = server.base.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall(head.encode() + body)
    return connection


def read_events(connection: socket.socket, n: int) -> None:
    answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    while answer.count(b"data: ") < n:
        part = connection.recv(4096)
        assert part, answer
        answer += part


def counted(server: Server, reason: str = "") -> float:
    """Finished requests, all or those with one reason."""
    text = server.http.get("/metrics").text
    found = re.findall(rf"^orcaserve_requests_finished_total{{.*{reason}.*}} (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


def test_b37_clients_leave_after_a_few_events(gpt2: Server, within: Any) -> None:
    """500 times: closed, reset, half closed; streams of completions and chat, of one choice and of several."""
    for i in range(N_ROUNDS):
        connection = requested(gpt2, (COMPLETIONS, CHAT)[i % 2], stream=True, n=1 + i % 3, temperature=1)
        read_events(connection, 1 + i % 5)
        leave(connection, ("close", "reset", "half")[i % 3])
    assert within(5, lambda: gpt2.reserved() == 0)
    assert within(5, lambda: gpt2.metric("orcaserve_requests_started_total") == counted(gpt2))


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("stream", [False, True])
def test_b37_clients_leave_at_once(gpt2: Server, stream: bool, how: str, within: Any) -> None:
    """While they are queued, initiated or answered, as it comes: more at a time than a batch holds."""
    connections = [requested(gpt2, stream=stream, prompt=gpt2.recited.script[: 1 + i % 8]) for i in range(90)]
    for connection in connections:
        leave(connection, how)
    assert within(5, lambda: gpt2.reserved() == 0)
    assert within(5, lambda: gpt2.metric("orcaserve_requests_started_total") == counted(gpt2))


def test_b37_a_normal_end_cancels_nothing(gpt2: Server) -> None:
    ended, cancelled = counted(gpt2), counted(gpt2, "cancelled")
    gpt2.both(max_tokens=20)
    gpt2.both(CHAT, max_tokens=20)
    assert (counted(gpt2), counted(gpt2, "cancelled")) == (ended + 4, cancelled)


def test_b37_others_do_not_notice(gpt2: Server) -> None:
    fields = {"max_tokens": 150, "temperature": 1.3, "seed": 9}
    quiet = "".join(gpt2.deltas(**fields))
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(gpt2.deltas, **fields) for _ in range(4)]
        while not all(stream.done() for stream in running):
            leave(requested(gpt2, stream=True), "reset")
        assert {"".join(stream.result()) for stream in running} == {quiet}


@pytest.mark.parametrize("fields", [{}, {"temperature": 1.7, "seed": 12}], ids=["greedy", "drawn"])
def test_b40_alone_and_in_a_batch(both_forms: Server, fields: dict[str, Any]) -> None:
    """128 tokens: two, four and eight at once, then among strangers of all lengths. In bfloat16 the same text too:
    sums run in one order here, whatever is beside them (tests/model/test_company.py has the bits)."""
    server = both_forms
    body = {"max_tokens": 128, **fields}
    alone, _ = server.both(**body)
    for n in (2, 4, 8):
        with ThreadPoolExecutor(n) as pool:
            assert {answer[0] for answer in pool.map(lambda _: server.both(**body), range(n))} == {alone}
    script = server.recited.script
    with ThreadPoolExecutor(24) as pool:
        strangers = [
            pool.submit(server.answer, prompt=script[i : i + 1 + 9 * i], max_tokens=3 + 4 * i, temperature=1, seed=i)
            for i in range(16)
        ]
        same = [pool.submit(server.both, **body) for _ in range(6)]
        assert {answer.result()[0] for answer in same} == {alone}
        for stranger in strangers:
            stranger.result()
