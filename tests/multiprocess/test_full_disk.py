"""Where the software writes while it serves, the disk is full: no request is lost, all goes on once there is room."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from disturbed import FLAGS, Alive, Stream, Within, outcomes, replaced, serving
from server_process import workers
from tiny_disk import TinyDisk

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc, and uses mount namespaces")
BODY = {"prompt": "ab", "max_tokens": 600, "temperature": 0.9, "seed": 3}


@pytest.fixture
def disk(folder: Path) -> TinyDisk:
    """Where the server's temporary files go."""
    try:
        return TinyDisk(folder)
    except OSError as error:
        pytest.skip(f"a tmpfs of our own cannot be mounted here: {error}")


@pytest.mark.parametrize(("cut", "kind", "said"), [
    ((), "names", "no folder for the engine's socket can be made: No space left on device"),
    (("-pp", "2"), "bytes", "no folder for the workers' sockets can be made: No usable temporary directory found in"),
], ids=["one process", "2x1"])  # fmt: skip
def test_an_engine_is_lost_while_the_disk_is_full(
    cut: tuple[str, ...], kind: str, said: str, served_odd_model: Path, folder: Path, disk: TinyDisk, alive: Alive,
    within: Within,
) -> None:  # fmt: skip
    with serving(served_odd_model, cut, folder, alive, within, inside=disk.inside) as serve:
        disk.of(serve.process.pid)
        undisturbed, engine = outcomes([Stream(serve, **BODY)]), serve.engine_pid
        with ThreadPoolExecutor(1) as pool:
            before = serve.metric("orcaserve_generation_tokens_total")
            running = pool.submit(Stream, serve, **BODY)
            assert within(20, lambda: serve.metric("orcaserve_generation_tokens_total") > before + 20)
            serve.process.send_signal(signal.SIGSTOP)  # so that the disk is full before another engine is started
            os.kill(engine, signal.SIGKILL)
            assert within(5, lambda: not alive(engine))
            for _ in range(3):  # what the engine had open is given back a little later
                disk.fill(leave_names=kind == "bytes")
                time.sleep(0.3)
            serve.process.send_signal(signal.SIGCONT)
            time.sleep(10)  # longer than six engines take that do not come up
            assert serve.http.get("/health").json()["status"] == "recovering" and not running.done()
            disk.free()
            assert outcomes([running.result()]) == undisturbed
        assert within(40, lambda: replaced(serve, engine))
        (line,) = (line for line in serve.log if "there is no room for another engine" in line)
        assert said in line, "it is said once, however often it is tried"
        assert disk.names == []


def test_no_room_from_the_start_is_one_line(served_model: Path, disk: TinyDisk) -> None:
    fill = 'while touch "full$((i=i+1))" 2>/dev/null; do :; done; exec "$@"'
    serve = [sys.executable, "-m", "orcaserve", "serve", str(served_model), "--port", "0"]
    done = subprocess.run(
        [*disk.inside, "bash", "-c", fill, "bash", *serve], capture_output=True, text=True, timeout=60
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("orcaserve: no folder for the engine's socket can be made: "), done.stderr
    assert done.returncode == 1 and "Traceback" not in done.stderr


def test_a_timeline_that_finds_no_room(served_model: Path, folder: Path, disk: TinyDisk) -> None:
    flags = ["--prompt", "ab", "--max-tokens", "3000", "--temperature", "0", "--ignore-eos"]
    generate = [sys.executable, "-m", "orcaserve", "generate", "--model", str(served_model), *flags]
    look = ["sh", "-c", '"$@" >/dev/null; code=$?; ls; exit $code', "sh"]
    done = subprocess.run(
        [*disk.inside, *look, *generate, "--timeline", str(folder / "run.json")],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "the timeline cannot be written: [Errno 28] No space left on device" in done.stderr
    assert done.stdout == "", "half a file is none"


def test_a_model_that_finds_no_room(default_model: Path, folder: Path, disk: TinyDisk) -> None:
    convert = [sys.executable, "-m", "orcaserve", "models", "convert", str(default_model), str(folder / "converted")]
    look = ["sh", "-c", '"$@"; code=$?; ls -A; exit $code', "sh"]
    done = subprocess.run([*disk.inside, *look, *convert], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (1, ""), "nothing is left of it"
    assert done.stderr == "orcaserve: No space left on device\n"


def test_a_log_that_finds_no_room(served_odd_model: Path, folder: Path, alive: Alive, within: Within) -> None:
    """Standard error is /dev/full: whoever writes a line is told that there is no room for it."""
    command = [sys.executable, "-m", "orcaserve", "serve", str(served_odd_model), *FLAGS, "-pp", "2"]
    path = folder / "http"
    with open("/dev/full", "w") as full:
        serve = subprocess.Popen([*command, "--log-level", "debug", "--uds", str(path)], stderr=full)
    http = httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://server", timeout=60)

    def ready() -> bool:
        try:
            return http.get("/ready").status_code == 200
        except httpx.TransportError:
            return False

    def complete() -> str:
        answer = http.post("/v1/completions", json={"model": "odd", "prompt": "a", "temperature": 0, "max_tokens": 9})
        return str(answer.json()["choices"][0]["text"])

    try:
        assert within(120, path.exists) and within(120, ready)
        known = complete()
        (engine,) = map(int, Path(f"/proc/{serve.pid}/task/{serve.pid}/children").read_text().split())
        os.kill(workers(engine)["s1r0"], signal.SIGKILL)
        assert within(10, lambda: not alive(engine))
        assert complete() == known
        (engine,) = map(int, Path(f"/proc/{serve.pid}/task/{serve.pid}/children").read_text().split())
        group = [engine, *workers(engine).values()]
        assert len(group) == 3
        serve.terminate()
        assert serve.wait(30) == 0
        assert within(2, lambda: not any(map(alive, group)))
    finally:
        http.close()
        serve.kill()
    assert not list(folder.iterdir())
