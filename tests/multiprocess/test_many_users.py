"""Many users of a real server: overload, deadlines, the way out with streams under way, and what does not get on."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from frozen_thread import FrozenThread, thread_of
from server_process import Serve, workers

from orcaserve.process import allow_many_files

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
FLAGS = ("--port", "0", "-t", "1", "--n-slots", "8192")
LONG = {"prompt": "ab", "max_tokens": 4000, "temperature": 0, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def shared(served_model: Path) -> Iterator[Serve]:
    bounds = ("-np", "8", "--max-num-queued-reqs", "16", "--shutdown-grace", "0")
    serve = Serve(str(served_model), *FLAGS, *bounds)
    yield serve
    assert serve.stop() == 0
    assert not any("Traceback" in line for line in serve.log)


async def ask(base: str, body: dict[str, Any], again: int = 0, **headers: str) -> tuple[int, float | None, Any]:
    """One request on a connection of its own: status, Retry-After, the answer's JSON."""
    host, _, port = base.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    raw = json.dumps(body).encode()
    lines = {"host": host, "content-type": "application/json", "content-length": str(len(raw)), "connection": "close"}
    lines |= {"x-stainless-retry-count": str(again)} | {name.replace("_", "-"): v for name, v in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + raw)
    answer = await reader.read()
    writer.close()
    top, _, rest = answer.partition(b"\r\n\r\n")
    retry = re.search(rb"retry-after: (\S+)", top)
    return int(top.split()[1]), None if retry is None else float(retry[1]), json.loads(rest)


def test_a_load_test_of_a_thousand_at_the_defaults(served_model: Path) -> None:
    """All at once and never again, as load tools do; the server's first limit of open files is the usual one."""
    allow_many_files()
    serve = Serve(str(served_model), *FLAGS, inside=("prlimit", "--nofile=1024:4096"))
    body = {"model": serve.model, "prompt": "ab" * 500, "max_tokens": 1, "temperature": 0}

    async def all_at_once() -> list[tuple[int, float | None, Any]]:
        return await asyncio.gather(*(ask(serve.base, body) for _ in range(1000)))

    try:
        told = asyncio.run(all_at_once())
        assert Counter(status for status, _, _ in told) == {200: 1000}
        assert all(answer["usage"]["completion_tokens"] == 1 for _, _, answer in told)
    finally:
        assert serve.stop() == 0


def test_hundreds_at_once(shared: Serve) -> None:
    """Those who are taken get their text; the others are told when to come back, and get theirs then."""
    known = shared.text(max_tokens=40)
    body = {"model": shared.model, "prompt": "ab", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    refused, told, attempts = Counter[str](), list[float](), list[int]()

    async def client() -> None:
        for attempt in range(100):
            status, retry, answer = await ask(shared.base, body, attempt)
            if status == 200:
                assert answer["choices"][0]["text"] == known
                attempts.append(attempt)
                return
            assert status == 429 and retry is not None and retry == int(retry) and 1 <= retry <= 60
            refused[answer["error"]["code"]] += 1
            told.append(retry)
            await asyncio.sleep(retry)
        raise AssertionError("never taken")

    async def all_of_them() -> None:
        await asyncio.gather(*(client() for _ in range(300)))

    asyncio.run(all_of_them())
    assert len(attempts) == 300 and set(refused) == {"overloaded"}
    print(f"{sum(refused.values())} refusals of 300 clients; told {Counter(told)}; attempts {Counter(attempts)}")
    assert shared.text(max_tokens=40) == known
    counted = re.search(r'requests_refused_total{code="overloaded"[^}]*} (\S+)', shared.http.get("/metrics").text)
    assert counted is not None and float(counted[1]) == sum(refused.values())


def test_deadlines(shared: Serve) -> None:
    body = {"model": shared.model, "prompt": "ab", "max_tokens": 4, "temperature": 0}
    assert shared.post("/v1/completions", **body, timeout=60).status_code == 200
    crowded = [(200, None)] * 14
    occupied = {**body, "max_tokens": 400, "ignore_eos": True}

    async def all_of_them() -> list[tuple[int, float | None, Any]]:
        crowd = [asyncio.create_task(ask(shared.base, occupied)) for _ in range(14)]
        await asyncio.sleep(0.5)
        hurried = await asyncio.gather(
            ask(shared.base, body, x_slo_ttft_ms="1"),
            ask(shared.base, {**body, "timeout": 0.001}),
            ask(shared.base, {**body, "timeout": 3600}),
        )
        assert [(status, answer.get("error")) for status, _, answer in await asyncio.gather(*crowd)] == crowded
        return hurried

    *hurried, patient = asyncio.run(all_of_them())
    assert patient[0] == 200
    for status, retry, answer in hurried:
        assert (status, answer["error"]["code"]) in ((429, "deadline_unreachable"), (504, "deadline_exceeded"))
        assert status == 504 or (retry is not None and retry >= 1)


@pytest.fixture
def started(served_model: Path) -> Iterator[Callable[..., Serve]]:
    """Start servers with flags of their own; none is left behind."""
    servers: list[Serve] = []

    def start(*flags: str) -> Serve:
        servers.append(Serve(str(served_model), *FLAGS, *flags))
        return servers[-1]

    yield start
    for serve in servers:
        serve.process.kill()
        serve.stop()


def status_of(serve: Serve, path: str) -> int:
    return httpx.get(f"{serve.base}{path}").status_code


def test_the_way_out(started: Callable[..., Serve], within: Callable[[float, Callable[[], bool]], bool]) -> None:
    """After SIGTERM: not ready at once, new requests a while longer, and what runs comes to its end."""
    serve = started("--shutdown-timeout", "60", "--shutdown-grace", "2")
    body = {"model": serve.model, **LONG}
    with serve.http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        serve.process.send_signal(signal.SIGTERM)
        assert within(1, lambda: status_of(serve, "/ready") == 503)
        assert status_of(serve, "/health") == 503 and status_of(serve, "/live") == 200
        late = httpx.post(f"{serve.base}/v1/completions", json={"model": serve.model, "prompt": "a", "max_tokens": 2})
        assert late.status_code == 200
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert serve.process.wait(20) == 0, "".join(serve.log)


def test_who_is_refused_on_the_way_out_is_told(
    started: Callable[..., Serve], within: Callable[[float, Callable[[], bool]], bool]
) -> None:
    serve = started("--shutdown-timeout", "3", "--shutdown-grace", "0")
    body = {"model": serve.model, **LONG}
    small = {"model": serve.model, "prompt": "a", "max_tokens": 2}
    with serve.http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        os.kill(serve.engine_pid, signal.SIGSTOP)  # whatever hangs
        serve.process.send_signal(signal.SIGTERM)
        assert within(2, lambda: status_of(serve, "/ready") == 503)
        refused = httpx.post(f"{serve.base}/v1/completions", json=small)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "stopping"
        rest = [line for line in lines if line]
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "stopping"
    assert serve.process.wait(30) == 1, "a request was cut"


@pytest.mark.parametrize("cut", [(), ("-pp", "2")])
def test_a_second_signal_while_something_hangs(
    cut: tuple[str, ...], started: Callable[..., Serve], alive: Callable[[int], bool]
) -> None:
    serve = started("--shutdown-timeout", "600", "--shutdown-grace", "300", *cut)
    engine = serve.engine_pid
    victim = workers(engine)["s1r0"] if cut else engine
    with serve.http.stream("POST", "/v1/completions", json={"model": serve.model, **LONG}) as answer:
        lines = answer.iter_lines()
        next(lines)
        os.kill(victim, signal.SIGSTOP)
        serve.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert serve.process.poll() is None
        serve.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "stopping"
    assert serve.process.wait(20) == 1
    assert not alive(engine) and not alive(victim)


def test_an_engine_that_lives_and_does_not_get_on(
    started: Callable[..., Serve], within: Callable[[float, Callable[[], bool]], bool], alive: Callable[[int], bool]
) -> None:
    """Its heartbeats come, its device is idle: the thread of its loop stands still. What its threads do is in the log,
    and the requests go on in another."""
    serve = started("--stall-timeout", "2", "--shutdown-grace", "0")
    known = serve.text(max_tokens=400)
    engine = serve.engine_pid
    time.sleep(5)  # old enough for its death to be no bad start
    try:
        FrozenThread(engine, thread_of(engine, "loop"))
    except OSError as error:
        pytest.skip(f"ptrace is not allowed here: {error.strerror}")
    assert serve.text(max_tokens=400) == known
    assert within(5, lambda: not alive(engine))
    log = "".join(serve.log)
    assert "has ended no iteration for 2 s though it has work" in log and "makes no progress" in log
    assert "Current thread" in log or "Thread 0x" in log, log
    assert "loop.py" in log
    assert serve.stop() == 0
