"""The engine dies at any moment, in any way, and no request is lost: real processes, spoken to over HTTP."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from disturbed import FLAGS, N_STREAMS, Alive, Stream, Within, bodies, outcomes, replaced, run_all, serving
from server_process import BYTES, Serve, workers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

N_ROUNDS = 4


# Only where silence is looked at: a busy machine may keep an engine from running for two seconds.
hasty = pytest.mark.parametrize("serve", [("--engine-timeout", "2")], indirect=True, ids=["hasty"])


@pytest.fixture
def serve(
    request: pytest.FixtureRequest, served_model: Path, folder: Path, alive: Alive, within: Within
) -> Iterator[Serve]:
    with serving(served_model, getattr(request, "param", ()), folder, alive, within) as serve:
        yield serve


@pytest.fixture
def serve_cut(
    request: pytest.FixtureRequest, served_odd_model: Path, folder: Path, alive: Alive, within: Within
) -> Iterator[Serve]:
    with serving(served_odd_model, request.param, folder, alive, within) as serve:
        yield serve


def test_engines_are_killed_at_random_moments_and_no_text_changes(serve: Serve, within: Within) -> None:
    rng = random.Random(4)
    wanted = bodies(400)
    started = time.monotonic()
    undisturbed = outcomes(run_all(serve, wanted, lambda: None))
    took = time.monotonic() - started
    assert all(done for *_, done in undisturbed) and len({text for text, *_ in undisturbed}) > N_STREAMS / 2
    n_comments = 0
    for n in range(N_ROUNDS):
        engine = serve.engine_pid

        def kill(engine: int = engine) -> None:
            time.sleep(rng.uniform(0.05, 0.9) * took)
            os.kill(engine, signal.SIGKILL)

        streams = run_all(serve, wanted, kill)
        assert [stream.error for stream in streams] == [None] * N_STREAMS
        assert outcomes(streams) == undisturbed
        assert within(20, lambda engine=engine: replaced(serve, engine))  # type: ignore[misc]
        assert serve.metric("orcaserve_engine_restarts_total") == n + 1
        n_comments += sum(stream.comments for stream in streams)
    assert n_comments > 0


# Where the model is cut, the engine process is the master of a group.
cut = pytest.mark.parametrize(
    "serve_cut", [("-pp", "2"), ("-tp", "2"), ("-pp", "2", "-tp", "2")], indirect=True, ids=["2x1", "1x2", "2x2"]
)
HASTY = ("--worker-timeout", "3", "--engine-timeout", "3")
hasty_cut = pytest.mark.parametrize("serve_cut", [("-pp", "2", *HASTY)], indirect=True, ids=["2x1"])
hasty_cuts = pytest.mark.parametrize(
    "serve_cut", [("-pp", "2", *HASTY), ("-tp", "2", *HASTY)], indirect=True, ids=["2x1", "1x2"]
)


def lose_each(serve: Serve, signum: signal.Signals, said: str, alive: Alive, within: Within) -> None:
    """One process of the group after the other is sent this signal while streams run; no text changes."""
    rng = random.Random(5)
    wanted = bodies(80)
    started = time.monotonic()
    undisturbed = outcomes(run_all(serve, wanted, lambda: None))
    took = time.monotonic() - started
    assert all(done for *_, done in undisturbed)
    names = sorted(workers(serve.engine_pid))
    for n, name in enumerate(["engine", *names]):
        engine = serve.engine_pid
        group = {**workers(engine), "engine": engine}
        assert sorted(group) == sorted(["engine", *names])

        def lose(victim: int = group[name]) -> None:
            time.sleep(rng.uniform(0.1, 0.7) * took)
            os.kill(victim, signum)

        streams = run_all(serve, wanted, lose)
        assert [stream.error for stream in streams] == [None] * N_STREAMS
        assert outcomes(streams) == undisturbed
        assert within(40, lambda engine=engine: replaced(serve, engine))  # type: ignore[misc]
        assert serve.metric("orcaserve_engine_restarts_total") == n + 1
        assert within(5, lambda group=group: not any(map(alive, group.values())))  # type: ignore[misc]
        if name != "engine":
            words = f"the engine has ended (worker {name} (process {group[name]}) {said}, exit code 1)"
            assert any(words in line for line in serve.log), "".join(serve.log)


@cut
def test_any_process_of_a_group_is_killed_and_no_text_changes(serve_cut: Serve, alive: Alive, within: Within) -> None:
    lose_each(serve_cut, signal.SIGKILL, "was ended by SIGKILL", alive, within)


@hasty_cuts
def test_any_process_of_a_group_is_stopped_and_no_text_changes(serve_cut: Serve, alive: Alive, within: Within) -> None:
    lose_each(serve_cut, signal.SIGSTOP, "has not answered for 3 s", alive, within)


@hasty_cut
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_is_lost_while_the_next_group_starts(
    signum: signal.Signals, serve_cut: Serve, alive: Alive, within: Within
) -> None:
    """Or just after it has: on a busy machine it may be quicker than this process looks."""
    body = {"prompt": "ab", "max_tokens": 500, "temperature": 0.9, "seed": 3}
    undisturbed, first = outcomes([Stream(serve_cut, **body)]), serve_cut.engine_pid
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(Stream, serve_cut, **body)
        assert within(10, lambda: serve_cut.metric("orcaserve_generation_tokens_total") > 520)
        os.kill(workers(first)["s0r0"], signal.SIGKILL)

        def starting() -> bool:
            return serve_cut.children not in ([], [first]) and "s1r0" in workers(serve_cut.children[0])

        assert within(20, starting)
        second = serve_cut.engine_pid
        os.kill(victim := workers(second)["s1r0"], signum)
        assert outcomes([running.result()]) == undisturbed
    assert within(10, lambda: not alive(victim) and not alive(second))


@hasty
def test_a_hung_engine_is_replaced_in_time(serve: Serve, alive: Alive, within: Within) -> None:
    body = {"prompt": "ab", "max_tokens": 3000, "temperature": 0.9, "seed": 3}
    undisturbed = outcomes([Stream(serve, **body)])
    engine = serve.engine_pid
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(Stream, serve, **body)
        assert within(10, lambda: serve.metric("orcaserve_generation_tokens_total") > 3020)
        os.kill(engine, signal.SIGSTOP)
        stopped = time.monotonic()
        assert within(10, lambda: not alive(engine))
        assert 1.5 <= time.monotonic() - stopped <= 4
        stream = running.result()
    assert stream.comments >= 1
    assert outcomes([stream]) == undisturbed


@hasty
def test_an_idle_engine_that_hangs_is_replaced_too(serve: Serve, alive: Alive, within: Within) -> None:
    known, engine = serve.text(max_tokens=8), serve.engine_pid
    os.kill(engine, signal.SIGSTOP)
    assert within(5, lambda: not alive(engine))
    assert serve.text(max_tokens=8) == known


@hasty
def test_a_silent_time_without_work_is_no_hang(serve: Serve) -> None:
    engine = serve.engine_pid
    time.sleep(5)
    assert serve.engine_pid == engine


def test_requests_wait_while_the_engine_is_away(serve: Serve, within: Within) -> None:
    known = serve.text(max_tokens=8)
    engine = serve.engine_pid
    os.kill(engine, signal.SIGKILL)
    assert within(2, lambda: serve.http.get("/ready").status_code == 503)
    health = serve.http.get("/health")
    assert (health.status_code, health.json()["status"]) == (200, "recovering")
    assert serve.metric("orcaserve_max_batch_size") == 24
    with ThreadPoolExecutor(9) as pool:
        waiting = [pool.submit(serve.text, max_tokens=8) for _ in range(8)]
        with pytest.raises(httpx.ReadTimeout):  # a client that leaves meanwhile is no trouble
            httpx.post(f"{serve.base}/v1/completions", json={"model": serve.model, "prompt": "x"}, timeout=0.05)
        assert [text.result() for text in waiting] == [known] * 8
    assert within(5, lambda: replaced(serve, engine))


def test_a_request_in_two_crashes_is_failed(serve: Serve, within: Within) -> None:
    """And one that came after the first crash goes on."""
    with ThreadPoolExecutor(2) as pool:
        suspect = pool.submit(Stream, serve, prompt="ab", max_tokens=4000, temperature=0, logit_bias={"90": 100})
        engine = serve.engine_pid
        assert within(10, lambda: serve.metric("orcaserve_generation_tokens_total") > 10)
        os.kill(engine, signal.SIGKILL)
        assert within(20, lambda: replaced(serve, engine))
        before = serve.metric("orcaserve_generation_tokens_total")
        other = pool.submit(Stream, serve, prompt="cd", max_tokens=300, temperature=0, logit_bias={"91": 100})
        assert within(10, lambda: serve.metric("orcaserve_generation_tokens_total") > before + 20)
        os.kill(serve.engine_pid, signal.SIGKILL)
        failed = suspect.result()
        assert failed.error is not None and failed.error["code"] == "engine_crashed" and not failed.done
        assert "crashed twice" in failed.error["message"] and failed.comments >= 1
        answer = other.result()
    assert answer.done and answer.text == chr(91 - BYTES) * 300 and answer.error is None


def test_after_the_limit_of_restarts_the_server_says_so_and_ends(
    served_model: Path, folder: Path, alive: Alive, within: Within
) -> None:
    serve = Serve(str(served_model), *FLAGS)
    killed: set[int] = set()

    def kill_another() -> bool:
        for engine in serve.children:
            if alive(engine):
                os.kill(engine, signal.SIGKILL)
                killed.add(engine)
        return serve.process.poll() is not None

    assert within(60, kill_another)
    assert serve.process.returncode == 1
    assert len(killed) == 6, "".join(serve.log)
    assert serve.stop() == 1
    assert any("there is no engine any more (6 in a row have lived for less than 5 s)" in line for line in serve.log)
    assert not any(alive(engine) for engine in killed) and not list(folder.iterdir())


def test_a_server_that_is_told_to_end_while_the_engine_is_away(served_model: Path, folder: Path, alive: Alive) -> None:
    serve = Serve(str(served_model), *FLAGS)
    engine = serve.engine_pid
    os.kill(engine, signal.SIGKILL)
    time.sleep(0.1)
    assert serve.stop() == 0
    assert not list(folder.iterdir()) and not any("Traceback" in line for line in serve.log)


def test_the_replacement_dies_with_its_endpoint(served_model: Path, folder: Path, alive: Alive, within: Within) -> None:
    serve = Serve(str(served_model), *FLAGS)
    engine = serve.engine_pid
    os.kill(engine, signal.SIGKILL)
    assert within(20, lambda: replaced(serve, engine))
    engine = serve.engine_pid
    assert serve.stop(signal.SIGKILL) == -signal.SIGKILL
    assert within(1, lambda: not alive(engine)) and not list(folder.iterdir())


def test_a_model_that_changes_meanwhile_is_not_taken(served_model: Path, folder: Path, tmp_path: Path) -> None:
    """Its tokens would be other ones: the server tries, then ends."""
    copy = tmp_path / "copy"
    shutil.copytree(served_model, copy)
    serve = Serve(str(copy), *FLAGS)
    (copy / "model.safetensors").write_bytes(b"\0" * 100)
    os.kill(serve.engine_pid, signal.SIGKILL)
    assert serve.process.wait(60) == 1
    serve.stop()
    log = "".join(serve.log)
    assert "another engine did not come up" in log and "there is no engine any more" in log and "Traceback" not in log
    assert not list(folder.iterdir())


@hasty
def test_a_server_that_is_stopped_for_a_while_keeps_its_engine(serve: Serve) -> None:
    body = {"prompt": "ab", "max_tokens": 3000, "temperature": 0.9, "seed": 3}
    undisturbed, engine = outcomes([Stream(serve, **body)]), serve.engine_pid
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(Stream, serve, **body)
        time.sleep(0.1)
        serve.process.send_signal(signal.SIGSTOP)
        time.sleep(4)
        serve.process.send_signal(signal.SIGCONT)
        assert outcomes([running.result()]) == undisturbed
    time.sleep(1)
    assert serve.engine_pid == engine


def test_the_default_model(default_model: Path, folder: Path, within: Within) -> None:
    """A real model, of which an iteration over a long prompt takes longer than an engine may be silent."""
    float32 = ("--quantization", "none", "--dtype", "float32", "--kv-cache-dtype", "float32")
    serve = Serve(str(default_model), "--port", "0", "--n-slots", "12288", "-t", "1", "--engine-timeout", "2", *float32)
    engine = serve.engine_pid
    serve.complete("word " * 4000, max_tokens=1)
    assert serve.engine_pid == engine, "a long iteration is no hang"
    wanted = [body | {"prompt": f"Item {i}: the sea is"} for i, body in enumerate(bodies(30)[:8])]
    undisturbed = outcomes(run_all(serve, wanted, lambda: None))

    def kill() -> None:
        before = serve.metric("orcaserve_generation_tokens_total")
        assert within(30, lambda: serve.metric("orcaserve_generation_tokens_total") > before + 100)
        os.kill(engine, signal.SIGKILL)

    assert outcomes(run_all(serve, wanted, kill)) == undisturbed
    assert serve.stop() == 0
    assert not list(folder.iterdir())


@pytest.mark.parametrize("seconds", ["nan", "0", "1.9", "4000", "soon"])
def test_a_wrong_timeout_is_one_line(seconds: str) -> None:
    command = [sys.executable, "-m", "orcaserve", "serve", "--engine-timeout", seconds]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--engine-timeout" in done.stderr
