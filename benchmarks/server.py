"""A real server for a benchmark: started on a free port, ended with it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpx


@dataclass(frozen=True)
class Server:
    base: str
    process: subprocess.Popen[bytes]
    ready_seconds: float  # from the command to the first 200


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def started(
    command: Sequence[str], ready: str, environment: Mapping[str, str] | None = None, quiet: bool = False
) -> Iterator[Server]:
    """Any server that takes --port. ready: the path that answers 200 once it serves. quiet: its log is thrown away."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    where = subprocess.DEVNULL if quiet else None
    start = time.perf_counter()
    process = subprocess.Popen([*command, "--port", str(port)], env=environment, stdout=where, stderr=where)
    try:
        with httpx.Client(base_url=base) as client:
            while True:
                if process.poll() is not None:
                    raise SystemExit(f"{command[0]} ended with {process.returncode}")
                try:
                    if client.get(ready).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.01)
        yield Server(base, process, time.perf_counter() - start)
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def serving(flags: Sequence[str] = ()) -> Iterator[Server]:
    """`orcaserve serve` with these flags."""
    command = [sys.executable, "-m", "orcaserve", "serve", "--log-level", "warning", *flags]
    with started(command, "/ready") as server:
        yield server
