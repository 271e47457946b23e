"""Several engines behind one endpoint: real processes, spoken to over HTTP; one is killed while clients stream."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from server_process import Serve, workers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

Alive = Callable[[int], bool]
Within = Callable[[float, Callable[[], bool]], bool]
FLAGS = ("--port", "0", "--n-slots", "32768", "-t", "1")
N_REQUESTS = 8


@contextmanager
def serving(model: Path, folder: Path, alive: Alive, within: Within, *flags: str) -> Iterator[Serve]:
    """A server of which nothing is left at the end: no process, no file."""
    serve = Serve(str(model), *FLAGS, *flags)
    try:
        yield serve
        below = [*serve.children, *(pid for engine in serve.children for pid in workers(engine).values())]
        assert serve.stop() == 0
        assert within(3, lambda: not any(map(alive, below)))
    finally:
        serve.process.kill()
    assert not list(folder.iterdir())
    assert not any("Traceback" in line for line in serve.log), "".join(serve.log)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the server's temporary files go."""
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def texts(serve: Serve, while_running: Callable[[], None] = lambda: None) -> list[str]:
    """Of requests at once, half of them greedy and half drawn with a seed, as streams."""
    drawn = {"temperature": 1.1, "presence_penalty": 0.4, "repetition_penalty": 1.1}
    with ThreadPoolExecutor(N_REQUESTS) as pool:
        running = [
            pool.submit(serve.stream, f"{i} " * (i + 1), max_tokens=2000, **(drawn | {"seed": i} if i % 2 else {}))
            for i in range(N_REQUESTS)
        ]
        while_running()
        return ["".join(each.result()) for each in running]


def of_replicas(serve: Serve, name: str) -> list[float]:
    """A gauge's value for each replica."""
    return [
        float(value) for value in re.findall(rf"^{name}{{.*replica=.*}} (\S+)$", serve.http.get("/metrics").text, re.M)
    ]


def test_requests_are_spread_and_none_is_lost_with_a_replica(
    served_model: Path, folder: Path, alive: Alive, within: Within
) -> None:
    with serving(served_model, folder, alive, within) as one:
        expected = texts(one)
        assert "replicas" not in one.http.get("/health").json()
    with serving(served_model, folder, alive, within, "-dp", "2") as serve:
        first = serve.children
        assert len(first) == 2 and serve.metric("orcaserve_kv_slots") == 2 * 32768
        seen: list[list[float]] = []

        def look() -> None:
            def spread() -> bool:
                seen.append(of_replicas(serve, "orcaserve_replica_requests"))
                return len(seen[-1]) == 2 and min(seen[-1]) >= 2  # they need not be there all at the same time

            assert within(20, spread), seen

        assert texts(serve, look) == expected
        before = serve.metric("orcaserve_generation_tokens_total")

        def kill() -> None:
            assert within(20, lambda: serve.metric("orcaserve_generation_tokens_total") > before + 400)
            os.kill(first[1], signal.SIGKILL)
            assert within(5, lambda: of_replicas(serve, "orcaserve_replica_present") == [1, 0])
            assert serve.http.get("/ready").status_code == 200, "the other one is there"
            assert serve.http.get("/health").json() == {"status": "ready", "replicas": ["ready", "recovering"]}
            assert serve.text(max_tokens=3)

        assert texts(serve, kill) == expected
        assert within(20, lambda: of_replicas(serve, "orcaserve_replica_present") == [1, 1])
        assert first[0] in serve.children and first[1] not in serve.children and len(serve.children) == 2
        assert serve.metric("orcaserve_engine_restarts_total") == 1
        assert any("replica 1 has ended" in line for line in serve.log)
        assert within(5, lambda: serve.metric("orcaserve_kv_slots_reserved") == 0)
        assert texts(serve) == expected


def test_replicas_of_a_model_that_is_cut(served_model: Path, folder: Path, alive: Alive, within: Within) -> None:
    with serving(served_model, folder, alive, within, "-dp", "2", "-pp", "2") as serve:
        expected = texts(serve)
        groups = [workers(engine) for engine in serve.children]
        assert [sorted(group) for group in groups] == [["s0r0", "s1r0"]] * 2
        before = serve.metric("orcaserve_generation_tokens_total")

        def kill() -> None:
            assert within(20, lambda: serve.metric("orcaserve_generation_tokens_total") > before + 200)
            os.kill(groups[0]["s1r0"], signal.SIGKILL)

        assert texts(serve, kill) == expected
        assert within(20, lambda: of_replicas(serve, "orcaserve_replica_present") == [1, 1])
        assert within(5, lambda: not any(map(alive, groups[0].values())))
        assert all(map(alive, groups[1].values())), "the other group goes on"


def test_a_replica_is_given_up_and_the_other_serves_on(
    served_model: Path, folder: Path, alive: Alive, within: Within
) -> None:
    with serving(served_model, folder, alive, within, "-dp", "2") as serve:
        kept, known = serve.children[0], serve.text(max_tokens=5)

        def kill_another() -> bool:
            for engine in serve.children:
                if engine != kept and alive(engine):
                    os.kill(engine, signal.SIGKILL)
            return "given up" in serve.http.get("/health").json()["replicas"]

        assert within(60, kill_another)
        assert serve.http.get("/ready").status_code == 200
        assert serve.http.get("/health").json()["replicas"] == ["ready", "given up"]
        assert any("replica 1 is given up (6 in a row" in line for line in serve.log)
        assert [serve.text(max_tokens=5) for _ in range(3)] == [known] * 3


def test_told_to_end_while_replicas_start(served_model: Path, folder: Path, within: Within) -> None:
    """At any moment: nothing is left of those that are there, nor of those that are about to be."""
    command = [sys.executable, "-m", "orcaserve", "serve", str(served_model), *FLAGS, "-dp", "3"]
    for seconds in (0.5, 0.8, 1.1, 1.4):
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            time.sleep(seconds)
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=30)
        assert process.returncode in (0, -signal.SIGTERM) and "Traceback" not in log, log
        assert within(3, lambda: not list(folder.iterdir())), log


@pytest.mark.parametrize("number", ["0", "-1", "65", "two"])
def test_a_wrong_number_is_one_line(number: str) -> None:
    command = [sys.executable, "-m", "orcaserve", "serve", "-dp", number]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--data-parallel-size" in done.stderr


def test_what_does_not_fit_is_one_line(served_model: Path) -> None:
    command = [sys.executable, "-m", "orcaserve", "serve", str(served_model), "-dp", "2", "--n-slots", str(2**40)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "--n-slots" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
