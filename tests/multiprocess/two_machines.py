"""`orcaserve serve` and `orcaserve worker` as processes of two machines, which may be network namespaces."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

SECRET = "known to both machines"
FLOATS = ("--dtype", "float32", "--kv-cache-dtype", "float32", "--n-slots", "4096", "-t", "1")
LONG = {"prompt": "the cut", "max_tokens": 900}


class Process:
    """One of ours, with what it says. inside: words before the command, which put it into a namespace."""

    def __init__(self, inside: tuple[str, ...], *words: str, secret: str = SECRET) -> None:
        environment = {**os.environ, "ORCASERVE_SECRET": secret}
        command = [*inside, sys.executable, "-m", "orcaserve", *words]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            self.log.extend(lines)

    @property
    def text(self) -> str:
        return "".join(self.log)

    def says(self, pattern: str, seconds: float = 120) -> str:
        """Wait until a line of it does."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.text)):
            assert time.monotonic() < deadline and self.process.poll() is None, f"no {pattern!r} in\n{self.text}"
            time.sleep(0.02)
        return found[0]

    def end(self, signum: int | None = None, seconds: float = 30) -> int:
        if signum is not None:
            self.process.send_signal(signum)
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code


def _free_port(host: str) -> int:
    """Of this machine's; a namespace of our own has all of them."""
    if not host.startswith("127."):
        return 7761
    with socket.socket() as one:
        one.bind((host, 0))
        return one.getsockname()[1]


class Pair:
    """A server whose second stage runs on another machine.

    cut: another way to share the model. own: flags of each. secret: of both; empty: none.
    """

    def __init__(
        self,
        model: Path,
        host: str,
        inside: tuple[tuple[str, ...], tuple[str, ...]],
        timeout: str,
        cut: tuple[str, ...] = ("-pp", "2"),
        own: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
        secret: str = SECRET,
    ) -> None:
        self._model, self._inside, self._timeout, self._own, self._secret = model, inside, timeout, own, secret
        self.folder = Path(tempfile.mkdtemp())
        path, self._join = self.folder / "http", f"{host}:{_free_port(host)}"
        flags = ("--worker-timeout", timeout, "--engine-timeout", "60", "--uds", str(path), *FLOATS, *own[0])
        self.serve = Process(
            inside[0], "serve", str(model), *cut, "--nnodes", "2", "--listen-workers", self._join, *flags,
            secret=secret,
        )  # fmt: skip
        self.http = httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://server", timeout=240)
        self.node = self.join()

    def join(self, by_rank: bool = False) -> Process:
        """Have the other machine join, in either spelling."""
        flags = ("--worker-timeout", self._timeout, "-t", "1", *self._own[1])
        if by_rank:
            all_have = ("-pp", "2", "--nnodes", "2", "--master-addr", self._join, "--node-rank", "1")
            return Process(self._inside[1], "serve", str(self._model), *all_have, *flags, secret=self._secret)
        own = ("--join", self._join, "--model", str(self._model), "--join-timeout", "60")
        return Process(self._inside[1], "worker", *own, *flags, secret=self._secret)

    def body(self, **fields: Any) -> dict[str, Any]:
        return {"model": self._model.name, "temperature": 0, "ignore_eos": True, **fields}

    def complete(self, **fields: Any) -> str:
        answer = self.http.post("/v1/completions", json=self.body(**fields))
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    def stream(self, on_first: Callable[[], None], **fields: Any) -> str:
        """The text of a stream. on_first: called when it has begun."""
        text, begun = "", False
        with self.http.stream("POST", "/v1/completions", json=self.body(stream=True, **fields)) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    assert "error" not in event, event
                    text += event["choices"][0]["text"]
                    if text and not begun:
                        begun = True
                        on_first()
        return text

    def streaming(self, **fields: Any) -> Future[str]:
        """A stream that has begun."""
        begun = threading.Event()
        pool = ThreadPoolExecutor(1)
        future = pool.submit(self.stream, begun.set, **fields)
        pool.shutdown(wait=False)
        assert begun.wait(120), self.serve.text + self.node.text
        return future

    def children(self, process: Process) -> list[int]:
        """Process ids below it, deeper ones as well."""
        found, waiting = [], [process.process.pid]
        while waiting:
            pid = waiting.pop()
            for path in Path(f"/proc/{pid}/task").glob("*/children"):
                own = list(map(int, path.read_text().split()))
                found += own
                waiting += own
        return found

    def close(self) -> None:
        for process in (self.serve, self.node):
            if process.process.poll() is None:
                process.process.kill()
                process.end()
        self.http.close()
        shutil.rmtree(self.folder)


@contextmanager
def pair_of(
    model: Path,
    host: str = "127.0.0.1",
    inside: tuple[tuple[str, ...], ...] = ((), ()),
    timeout: str = "30",
    cut: tuple[str, ...] = ("-pp", "2"),
    own: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
    secret: str = SECRET,
) -> Iterator[Pair]:
    pair = Pair(model, host, (inside[0], inside[1]), timeout, cut, own, secret)
    try:
        pair.serve.says("ready on")
        yield pair
        children = pair.children(pair.serve) + pair.children(pair.node)
        assert pair.serve.end(signal.SIGTERM) == 0
        assert pair.node.end() == 0, "the server says goodbye"
        assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
        said = pair.serve.text + pair.node.text
        # A worker whose neighbour is gone says where it was; nobody else has anything to say.
        assert not re.search(r'File ".*/orcaserve/(node|engine|serving|cli)/', said), said
    finally:
        pair.close()
