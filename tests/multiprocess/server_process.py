"""`orcaserve serve` as a process of its own, spoken to over HTTP."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

BYTES = 3  # id of byte 0 in the tiny vocabulary: <unk>, <s>, </s>, then bytes 0 to 252


class Serve:
    """A running `orcaserve serve`. inside: words before the command, which put it somewhere and become it.

    key: its API key, if the flags give it one.
    """

    def __init__(self, *flags: str, inside: Sequence[str] = (), key: str | None = None) -> None:
        command = [*inside, sys.executable, "-m", "orcaserve", "serve", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log: list[str] = []
        self._ready = threading.Event()
        self.base = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(120) or not self.base:
            self.process.kill()
            raise AssertionError("not ready:\n" + "".join(self.log))
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self.http = httpx.Client(base_url=self.base, timeout=60, headers=headers)
        self.model = self.http.get("/v1/models").json()["data"][0]["id"]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"ready on (http://\S+)", line):
                self.base = found[1]
                self._ready.set()
        self._ready.set()

    @property
    def children(self) -> list[int]:
        """Of its main thread: engines."""
        return list(map(int, Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()))

    @property
    def grammar_pids(self) -> list[int]:
        """The process that compiles grammars, if there is one."""
        return [pid for pid, title in children_of(self.process.pid).items() if title == "orcaserve: grammars"]

    @property
    def engine_pid(self) -> int:
        (child,) = self.children
        return child

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json={"model": self.model, **body})

    def complete(self, prompt: Any = "ab", **fields: Any) -> dict[str, Any]:
        body = {"prompt": prompt, "temperature": 0, "ignore_eos": True, **fields}
        answer = self.post("/v1/completions", **body)
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    def text(self, prompt: Any = "ab", **fields: Any) -> str:
        return str(self.complete(prompt, **fields)["choices"][0]["text"])

    def stream(self, prompt: Any = "ab", **fields: Any) -> list[str]:
        body = {"model": self.model, "prompt": prompt, "temperature": 0, "ignore_eos": True, "stream": True, **fields}
        lines = [ln[6:] for ln in self.http.post("/v1/completions", json=body).text.splitlines() if ln[:5] == "data:"]
        assert lines.pop() == "[DONE]"
        return [json.loads(line)["choices"][0]["text"] for line in lines]

    def metric(self, name: str) -> float:
        found = re.search(rf"^{name}{{[^}}]*}} (\S+)$", self.http.get("/metrics").text, re.MULTILINE)
        assert found, name
        return float(found[1])

    def stop(self, signum: int = signal.SIGTERM) -> int:
        self.http.close()
        self.process.send_signal(signum)
        code = self.process.wait(30)
        self._reader.join(5)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


def workers(parent: int) -> dict[str, int]:
    """Process ids of a process's workers, by name."""
    mark = "orcaserve: worker "
    return {title.removeprefix(mark): pid for pid, title in children_of(parent).items() if title.startswith(mark)}


def children_of(parent: int) -> dict[int, str]:
    """A process's children, and what they are called."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat, title = Path(entry, "stat").read_text(), Path(entry, "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                found[int(entry.name)] = title.rstrip(b"\0").decode(errors="replace")
    return found
