"""Watching a real server: its schedule as it happens, and the requests that are under way."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest
from server_process import Serve

from orcaserve.schedule_log.format import Arrived, HandedOut, Log, Returned
from orcaserve.schedule_log.reader import read_log
from orcaserve.simulation.reproduce import reproduce

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

FLAGS = ("--port", "0", "--n-slots", "4096", "-t", "1", "--max-model-len", "1024", "-np", "3")


class Listener:
    """Reads /v1/schedule on a thread. lines: all that has come, headers too."""

    def __init__(self, base: str, query: str = "") -> None:
        self.lines: list[str] = []
        self.over = threading.Event()
        self._news = threading.Condition()
        host, port = base.removeprefix("http://").split(":")
        self._connection = HTTPConnection(host, int(port), timeout=60)
        self._thread = threading.Thread(target=self._read, args=(query,), daemon=True)
        self._thread.start()

    def _read(self, query: str) -> None:
        try:
            self._connection.request("GET", f"/v1/schedule{query}")
            answer = self._connection.getresponse()
            assert answer.headers["content-type"].startswith("text/event-stream")
            with contextlib.suppress(OSError, HTTPException):
                while line := answer.readline():
                    if line.startswith(b"data: "):
                        with self._news:
                            self.lines.append(line[6:-1].decode())
                            self._news.notify_all()
            answer.close()
        finally:
            self._connection.close()
            self.over.set()

    def wait_for(self, found: Any, seconds: float = 30.0) -> None:
        with self._news:
            assert self._news.wait_for(lambda: found(self.lines), seconds), self.lines[-5:]

    def headers(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    def log(self, folder: Path, part: int = -1) -> Log:
        """What has come from one of the headers on, as the reader of files has it; up to the next one."""
        lines = list(self.lines)
        begins = [i for i, line in enumerate(lines) if line.startswith("{")]
        begin = begins[part]
        end = next((i for i in begins if i > begin), len(lines))
        path = folder / "watched.log"
        path.write_text("\n".join(lines[begin:end]) + "\n")
        return read_log(path)

    def close(self) -> None:
        """Leave, as a tab that is closed."""
        self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)


@pytest.fixture
def server(served_model: Path, tmp_path: Path) -> Iterator[Serve]:
    serve = Serve(str(served_model), *FLAGS, "--schedule-log", str(tmp_path / "run.log"))
    try:
        yield serve
    finally:
        serve.process.kill()


def ended(lines: list[str], n: int) -> bool:
    """Whether n requests have ended."""
    parsed = (json.loads(line) for line in lines if line[:4] in ('["r"', '["c"'))
    return sum(len(fields[4 if fields[0] == "r" else 3]) for fields in parsed if len(fields) > 4) >= n


def test_from_the_start_it_is_what_the_file_has(server: Serve, tmp_path: Path) -> None:
    listener = Listener(server.base)
    listener.wait_for(lambda lines: len(lines) == 1)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: server.complete("x" * (1 + 9 * i), max_tokens=4 + i), range(8)))
    listener.wait_for(lambda lines: ended(lines, 8))
    assert server.stop() == 0
    assert listener.over.wait(10), "a server that stops ends the stream"
    assert server.process.returncode == 0
    watched, kept = listener.log(tmp_path), read_log(tmp_path / "run.log")
    assert watched.settings == kept.settings and watched.start == kept.start
    assert list(watched.events) == list(kept.events)[: len(watched.events)]
    assert sum(isinstance(event, Arrived) for event in watched.events) == 8
    assert reproduce(watched).difference is None


def test_from_the_midst(server: Serve, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(server.complete, "x" * (1 + i), max_tokens=300) for i in range(8)]
        while server.metric("orcaserve_iterations_total") < 30:
            time.sleep(0.005)
        listener = Listener(server.base)
        for answer in answers:
            answer.result()
        listener.wait_for(lambda lines: lines and ended(lines, len(json.loads(lines[0])["live"])))
    assert server.stop() == 0
    (header,) = listener.headers()
    assert header["live"] and header["part"] > 1
    assert header["in_flight"] or header["last"], "they had begun"
    watched, kept = listener.log(tmp_path), read_log(tmp_path / "run.log")
    assert not watched.whole and {known.id for known, _ in watched.live} <= set(range(1, 9))
    first = next(i for i, event in enumerate(kept.events) if event.time == watched.events[0].time)
    assert list(kept.events)[first : first + len(watched.events)] == list(watched.events)


def test_another_engine_is_another_run(server: Serve, tmp_path: Path) -> None:
    listener = Listener(server.base)
    listener.wait_for(lambda lines: len(lines) == 1)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.complete, "y", max_tokens=700)
        listener.wait_for(lambda lines: sum(line.startswith('["r"') for line in lines) > 20)
        os.kill(server.engine_pid, signal.SIGKILL)
        while (rows := server.http.get("/v1/requests").json())["data"][0]["why_waiting"] == "":
            time.sleep(0.01)
        assert "it waits for another engine" in rows["data"][0]["why_waiting"], rows
        assert rows["data"][0]["state"] == "waiting" and rows["data"][0]["endpoint"] == "/v1/completions"
        listener.wait_for(lambda lines: sum(line.startswith("{") for line in lines) == 2, 60)
        answer.result()
    listener.wait_for(lambda lines: ended(lines, 1))
    one, other = listener.headers()
    assert one["run"] != other["run"]
    log = listener.log(tmp_path)
    there = [known for known, _ in log.live] + [e.request for e in log.events if isinstance(e, Arrived)]
    assert [known.carried > 10 for known in there] == [True]
    assert server.stop() == 0


def test_fifty_listeners_of_whom_ten_do_not_read(server: Serve, tmp_path: Path) -> None:
    alone = server.text("abc", max_tokens=200)
    host, port = server.base.removeprefix("http://").split(":")
    silent = []
    for _ in range(10):
        raw = socket.create_connection((host, int(port)))
        raw.sendall(b"GET /v1/schedule HTTP/1.1\r\nhost: x\r\n\r\n")
        silent.append(raw)
    listeners = [Listener(server.base) for _ in range(40)]
    for listener in listeners:
        listener.wait_for(lambda lines: len(lines) >= 1)
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda i: server.text("abc", max_tokens=200), range(4)))
    assert texts == [alone] * 4
    for listener in listeners:
        listener.wait_for(lambda lines: ended(lines, 1))
        log = listener.log(tmp_path)
        assert any(isinstance(event, Returned) for event in log.events)
    assert server.stop() == 0
    assert all(listener.over.wait(10) for listener in listeners)
    for raw in silent:
        raw.close()


def test_why_a_request_waits(server: Serve) -> None:
    with ThreadPoolExecutor(8) as pool:
        big = pool.submit(server.complete, "x" * 100, max_tokens=900)
        others = [pool.submit(server.complete, "x" * 200, max_tokens=800) for _ in range(5)]
        while not waits_there(rows := server.http.get("/v1/requests").json()["data"], 6):
            assert not big.done()
            time.sleep(0.01)
        for answer in [big, *others]:
            answer.result()
    states = [row["state"] for row in rows]
    assert states[:3] == ["increment"] * 3 or "initiation" in states[:3]
    assert states[3:] == ["waiting"] * 3
    assert [row["why_waiting"] for row in rows[3:]] == [
        "the batch is full (max_bs 3)",
        "1 request came before it; the batch is full (max_bs 3)",
        "2 requests came before it; the batch is full (max_bs 3)",
    ]
    for row in rows:
        assert row["id"].startswith("cmpl-") and row["replica"] == 0 and row["choice"] == 0
        holds = row["state"] != "waiting"
        assert (row["slots_reserved"] >= 1000) == holds and row["slots_used"] <= row["slots_reserved"]
    assert server.http.get("/v1/requests").json() == {"object": "list", "data": [], "total": 0, "has_more": False}
    assert server.stop() == 0


def waits_there(rows: list[dict[str, Any]], n: int) -> bool:
    """Whether there are so many, and the last of them waits; none of them has only just come."""
    reasons = [row["why_waiting"] for row in rows]
    new = any(word in reason for reason in reasons for word in ("on its way to the engine", "has only just come"))
    return len(rows) >= n and bool(reasons[-1]) and not new


def test_a_request_that_lacks_slots(served_model: Path) -> None:
    serve = Serve(str(served_model), "--port", "0", "--n-slots", "4096", "-t", "1", "--max-model-len", "4096")
    try:
        with ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(serve.complete, "x" * 10, max_tokens=3190) for _ in range(2)]
            while not waits_there(rows := serve.http.get("/v1/requests").json()["data"], 2):
                assert not all(answer.done() for answer in answers)
                time.sleep(0.005)
            for answer in answers:
                answer.result()
        assert rows[1]["why_waiting"] == "it needs 3,200 slots and 896 are free"
        assert (rows[0]["slots_reserved"], rows[1]["slots_reserved"]) == (3200, 0)
        assert serve.stop() == 0
    finally:
        serve.process.kill()


def test_batches_of_a_watched_engine_are_in_order(server: Serve, tmp_path: Path) -> None:
    """Listeners that come and go leave the lines whole for one who stays."""
    stays = Listener(server.base)
    stays.wait_for(lambda lines: len(lines) == 1)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.complete, "z", max_tokens=600)
        for _ in range(5):
            passing = Listener(server.base)
            passing.wait_for(lambda lines: len(lines) >= 1)
            passing.close()
        answer.result()
    stays.wait_for(lambda lines: ended(lines, 1))
    assert server.stop() == 0
    path = tmp_path / "joined.log"
    lines = [line for i, line in enumerate(stays.lines) if i == 0 or not line.startswith("{")]
    path.write_text("\n".join(lines) + "\n")
    numbers = [event.number for event in read_log(path).events if isinstance(event, HandedOut)]
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) == 600
