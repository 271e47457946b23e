"""WorkerGroup: the worker processes of one engine on this machine: started, watched and ended together."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue

from orcaserve.config import EngineConfig
from orcaserve.control_plane import worker_codec as codec
from orcaserve.control_plane import worker_pb2 as wire
from orcaserve.control_plane.channel import MAX_SOCKET_PATH, worker_socket
from orcaserve.control_plane.worker_client import WorkerLink
from orcaserve.core import ConfigError, EngineError, OrcaServeError
from orcaserve.data_plane.protocol import Place
from orcaserve.process import child_environment
from orcaserve.version import __version__

WORKER_MODULE = "orcaserve.worker.process"  # by name only: importing it would bring the kernels
CHECKS = 8  # for heartbeats, in the time after which a worker is taken for lost
END_GRACE = 1.0  # s that workers have to end by themselves
_SETTLE = 0.2  # s; deaths come in a row, and the first news is not always of the first death

_log = logging.getLogger(__name__)


class WorkerGroup:
    """One life of the worker processes.

        group = WorkerGroup(config, places, on_message, on_loss)
        slot_bytes = group.load()      # starts them; they load their parts
        group.start(n_slots)           # they make their K/V regions and find each other
        group.send(iteration)          # to the first stage
        group.close()

    They die with the thread that calls `load`, and with this process, which alone holds a pipe to each open.
    on_message: results and spans, on threads of the control plane's. on_loss: called once, if a worker is lost after
    `start`, with an EngineError that says which and how; the others are of no use then.
    """

    def __init__(
        self,
        config: EngineConfig,
        places: Sequence[Place],
        on_message: Callable[[Place, wire.FromWorker], None],
        on_loss: Callable[[OrcaServeError], None],
    ) -> None:
        self._config, self._places = config, places
        self._on_message, self._on_loss = on_message, on_loss
        self._processes: dict[Place, subprocess.Popen[bytes]] = {}
        self._links: dict[Place, WorkerLink] = {}
        self._news: SimpleQueue[wire.FromWorker | None] = SimpleQueue()  # of loading; None: a worker is lost
        self._lock = threading.Lock()
        self._said: dict[Place, OrcaServeError] = {}  # what workers said of their own failures
        self._silent: list[Place] = []  # whose streams have ended, or who sent no heartbeat
        self._heard: dict[Place, float] = {}  # when, on time.monotonic()
        self._losing = self._closing = self._started = False
        self._lost: OrcaServeError | None = None
        self._ended = threading.Event()
        self._last_check = 0.0
        self._folder: Path | None = None

    def load(self) -> int:
        """Start the processes and wait until they have their weights: bytes of a slot, over all of them.

        Raises what a worker raised (ModelError, ConfigError), or EngineError if one is lost.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="orcaserve-"))  # mode 0700: the sockets in it are ours alone
        if len(os.fsencode(worker_socket(self._folder, "s999r999"))) > MAX_SOCKET_PATH:
            raise ConfigError("TMPDIR", f"its name is too long for a socket in it ({MAX_SOCKET_PATH} bytes in all)")
        for place in self._places:
            self._launch(place, self._folder)
        for place in self._places:
            self._links[place] = self._attach(place, self._folder)
        slot_bytes = 0
        for _ in self._places:
            loaded = self._await("loaded").loaded
            if loaded.version != __version__:
                raise EngineError(f"a worker is of version {loaded.version}, this engine of {__version__}")
            slot_bytes += loaded.slot_bytes
        return slot_bytes

    def start(self, n_slots: int) -> None:
        """Raises as `load`."""
        for link in self._links.values():
            link.start(n_slots)
        for _ in self._places:
            self._await("ready")
        self._remove_folder()  # connected for good: nothing is left to be found, or to be left behind
        with self._lock:
            if self._lost is not None:
                raise self._lost
            self._started = True
        self._last_check = time.monotonic()
        self._heard = dict.fromkeys(self._places, self._last_check)
        threading.Thread(target=self._listen, name="heartbeats", daemon=True).start()

    def send(self, iteration: wire.Iteration) -> None:
        """To every shard of the first stage; returns at once."""
        for place, link in self._links.items():
            if place.stage == 0:
                link.send(iteration)

    def close(self) -> None:
        """End the processes: their streams first, then whoever has not ended after END_GRACE. Idempotent."""
        self._ended.set()
        with self._lock:
            self._closing = True
        for link in self._links.values():
            link.close()
        deadline = time.monotonic() + END_GRACE
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0))
        self.kill()

    def kill(self) -> None:
        """End the processes now. Idempotent; from any thread."""
        self._ended.set()
        with self._lock:
            self._closing = True
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        self._remove_folder()

    def _launch(self, place: Place, folder: Path) -> None:
        command = [sys.executable, "-P", "-m", WORKER_MODULE, "--folder", str(folder)]
        level = logging.getLevelName(_log.getEffectiveLevel()).lower()
        process = subprocess.Popen(
            [*command, "--place", f"{place.stage},{place.shard}", "--parent", str(os.getpid()), "--log-level", level],
            stdin=subprocess.PIPE,
            env=child_environment(),
            start_new_session=True,  # Ctrl-C in a terminal reaches the endpoint only, which ends the rest in order
        )
        self._processes[place] = process
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already: the watch says so
            process.stdin.write(self._config.to_json().encode() + b"\n")
            process.stdin.flush()
        threading.Thread(target=self._watch, args=(place, process), name="worker watch", daemon=True).start()

    def _attach(self, place: Place, folder: Path) -> WorkerLink:
        return WorkerLink(
            worker_socket(folder, place.name),
            self._config.parallel.worker_timeout,
            lambda message: self._take(place, message),
            lambda _: self._lose(place, silent=True),
        )

    def _watch(self, place: Place, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._lose(place)

    def _listen(self) -> None:
        """Until a worker has been silent for too long. Time in which this process did not run itself does not count."""
        timeout = self._config.parallel.worker_timeout
        while not self._ended.wait(timeout / CHECKS):
            now = time.monotonic()
            if now - self._last_check > 2 * timeout / CHECKS:
                self._heard = dict.fromkeys(self._places, now)
            self._last_check = now
            for place, heard in self._heard.items():
                if now - heard > timeout:
                    self._lose(place, silent=True)
                    return

    def _await(self, kind: str) -> wire.FromWorker:
        message = self._news.get()
        if message is None:
            assert self._lost is not None
            raise self._lost
        if not message.HasField(kind):
            raise EngineError(f"a worker said {message.WhichOneof('kind')} instead of {kind}")
        return message

    def _take(self, place: Place, message: wire.FromWorker) -> None:
        self._heard[place] = time.monotonic()
        if message.HasField("failure"):
            self._said.setdefault(place, codec.decode_failure(message.failure))
            self._lose(place)
        elif message.HasField("heartbeat"):
            pass
        elif message.HasField("loaded") or message.HasField("ready"):
            self._news.put(message)
        else:
            self._on_message(place, message)

    def _lose(self, place: Place, silent: bool = False) -> None:
        with self._lock:
            if silent:
                self._silent.append(place)
            if self._losing or self._closing:
                return
            self._losing = True
        time.sleep(_SETTLE)
        with self._lock:
            if self._closing:
                return
            self._lost = error = self._reason(place)
            started = self._started
        _log.error("%s", error)
        self._news.put(None)
        if started:
            self._on_loss(error)

    def _reason(self, place: Place) -> OrcaServeError:
        """What happened, as far as it is known; the first news may be of a worker that only followed another."""
        for killed, process in self._processes.items():
            if process.returncode is not None and process.returncode < 0:
                name = signal.Signals(-process.returncode).name
                return EngineError(f"worker {killed.name} (process {process.pid}) was ended by {name}")
        for who, error in self._said.items():
            return error if not isinstance(error, EngineError) else EngineError(f"worker {who.name}: {error}")
        for silent in self._silent:
            if self._processes[silent].returncode is None:
                which = f"worker {silent.name} (process {self._processes[silent].pid})"
                if not self._started:
                    return EngineError(f"{which} does not answer")
                return EngineError(f"{which} has not answered for {self._config.parallel.worker_timeout:g} s")
        return EngineError(f"worker {place.name} ended with code {self._processes[place].returncode}")

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
