"""WorkerProcess: a worker process as a child of this one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from orcaserve.config import EngineConfig
from orcaserve.data_plane.memory import SharedMemory
from orcaserve.data_plane.protocol import Place
from orcaserve.logs import words_for_child
from orcaserve.process import child_environment

WORKER_MODULE = "orcaserve.worker.process"  # by name only: importing it would bring the kernels


class WorkerProcess:
    """Started at once. It dies with the thread that starts it, and with this process, which holds a pipe to it open.

    folder: for its socket, on the master's machine; elsewhere it listens at `address`. store, memory: see
    worker.controller.Site; it inherits the descriptors. among: which one of how many it is on
    this machine.
    on_end: called when it has ended, on a thread of its own; `returncode` is set by then.
    """

    where = ""  # words behind its name, where that is not this machine

    def __init__(
        self,
        place: Place,
        config: EngineConfig,
        on_end: Callable[[], None],
        folder: Path | None = None,
        address: str = "127.0.0.1",
        store: int | None = None,
        memory: SharedMemory | None = None,
        among: tuple[int, int] = (0, 1),
    ) -> None:
        command = [sys.executable, "-P", "-m", WORKER_MODULE, "--place", f"{place.stage},{place.shard}"]
        command += ["--parent", str(os.getpid()), *words_for_child(), "--address", address]
        command += ["--among", "{},{}".format(*among)]
        command += [] if folder is None else ["--folder", str(folder)]
        command += [] if store is None else ["--store", str(store)]
        command += [] if memory is None else ["--memory", memory.to_text()]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if folder is None else None,
            env=child_environment(),
            pass_fds=[fd for fd in (store, None if memory is None else memory.descriptor) if fd is not None],
            start_new_session=True,  # Ctrl-C in a terminal reaches the parent only, which ends the rest in order
        )
        self.pid = self._process.pid
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already: the watch says so
            self._process.stdin.write(config.to_json().encode() + b"\n")
            self._process.stdin.flush()
        threading.Thread(target=self._watch, args=(on_end,), name="worker watch", daemon=True).start()

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def port(self) -> int:
        """Where it listens, once it does; 0 if it ended before."""
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            return int(stdout.readline() or 0)

    def wait(self, timeout: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)

    def kill(self) -> None:
        """Idempotent."""
        self._process.kill()

    def reap(self) -> None:
        """After `kill`: when this returns it is gone."""
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _watch(self, on_end: Callable[[], None]) -> None:
        self._process.wait()
        on_end()
