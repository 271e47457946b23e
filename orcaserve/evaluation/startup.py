"""Start-up: from the command to the first token, in fresh processes, and the most memory they take."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from orcaserve.core.errors import EngineError
from orcaserve.evaluation.unix_http import UnixConnection

CLIENTS, PROMPT, GEN = 32, 128, 64  # the work that memory is measured under
NAME = "measured"  # of the model, for clients
N_SLOTS = CLIENTS * (PROMPT + GEN)


@dataclass(frozen=True, slots=True)
class Start:
    """One start of everything. Seconds from the command; peak resident bytes of a process (shared pages in each).

    help: until `--help` has ended. generate: until the first text of `orcaserve generate`. ready, serve: until the
    first 200 of /ready of `orcaserve serve`, and until the first token of a stream asked for then.
    """

    help: float
    generate: float
    ready: float
    serve: float
    endpoint_bytes: int
    engine_bytes: int


def measure_start(flags: Sequence[str]) -> Start:
    """Start `orcaserve` with these model flags. Raises EngineError if a process ends too early."""
    command = [sys.executable, "-m", "orcaserve"]
    began = time.perf_counter()
    subprocess.run([*command, "--help"], stdout=subprocess.DEVNULL, check=True)
    helped = time.perf_counter() - began
    generated = _first_text([*command, "generate", *flags, "--prompt", "The sea is", "--max-tokens", "1"])
    limits = ["--n-slots", str(N_SLOTS), "--max-num-seqs", str(CLIENTS)]
    limits += ["--served-model-name", NAME, "--log-level", "warning"]
    with tempfile.TemporaryDirectory() as folder:
        socket = str(Path(folder) / "http")
        began = time.perf_counter()
        with _running([*command, "serve", *flags, *limits, "--uds", socket]) as process:
            with closing(_ready(process, socket)) as connection:
                ready = time.perf_counter() - began
                _first_event(connection)
                served = time.perf_counter() - began
            with closing(UnixConnection(socket)) as connection:
                _work(connection)
            engines = [peak_bytes(pid) for pid in _children(process.pid)]
            return Start(helped, generated, ready, served, peak_bytes(process.pid), sum(engines))


def peak_bytes(pid: int) -> int:
    """The most memory the process has had resident so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) * 1024


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def _running(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _first_text(command: Sequence[str]) -> float:
    began = time.perf_counter()
    with _running(command) as process:
        assert process.stdout is not None
        if not process.stdout.read(1):
            raise EngineError(f"`{' '.join(command[2:4])}` ended without a text")
        return time.perf_counter() - began


def _ready(process: subprocess.Popen[bytes], socket: str) -> UnixConnection:
    """A connection to the server, once it is ready."""
    while process.poll() is None:
        connection = UnixConnection(socket)
        try:
            connection.request("GET", "/ready")
            response = connection.getresponse()
            response.read()
            if response.status == 200:
                return connection
        except (ConnectionError, FileNotFoundError):
            pass
        connection.close()
        time.sleep(0.005)
    raise EngineError(f"`orcaserve serve` ended with exit code {process.returncode}")


def _first_event(connection: UnixConnection) -> None:
    _post(connection, {"prompt": "The sea is", "max_tokens": 1, "temperature": 0, "stream": True})
    response = connection.getresponse()
    if not response.readline().startswith(b"data: {"):
        raise EngineError(f"the server answered with {response.status}")
    response.read()


def _work(connection: UnixConnection) -> None:
    """All clients at once, as one request of many prompts."""
    rng = random.Random(0)
    prompts = [[rng.randint(100, 40_000) for _ in range(PROMPT)] for _ in range(CLIENTS)]
    _post(connection, {"prompt": prompts, "max_tokens": GEN, "temperature": 0, "ignore_eos": True})
    response = connection.getresponse()
    usage = json.loads(response.read()).get("usage", {})
    if usage.get("completion_tokens") != CLIENTS * GEN:
        raise EngineError(f"the server answered with {response.status}")


def _post(connection: UnixConnection, body: dict[str, object]) -> None:
    connection.request(
        "POST", "/v1/completions", json.dumps({"model": NAME, **body}), {"Content-Type": "application/json"}
    )
