"""EngineProcess: starts the engine as a child of this process, watches it, and ends it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import orcaserve.core as core
from orcaserve.config import EngineConfig
from orcaserve.control_plane.channel import MAX_SOCKET_PATH
from orcaserve.control_plane.client import EngineClient
from orcaserve.core import ConfigError, EngineError, ModelError, NoRoom, OrcaServeError
from orcaserve.logs import words_for_child
from orcaserve.process import DUMP_SIGNAL, child_environment, descendants

ENGINE_MODULE = "orcaserve.engine.process"  # by name only: importing it would bring torch
KILL_GRACE = 5.0  # s between SIGTERM and SIGKILL
DUMP_SECONDS = 0.5  # for a process to write what its threads do
END_GRACE = 5.0  # s between the end of its stream and that of the process


class EngineProcess:
    """The engine process, from the side of its parent.

        engine = EngineProcess(config)
        engine.start()                      # main thread; returns at once, the model loads meanwhile
        client = await engine.connect(600)  # until the model is loaded
        await engine.wait()                 # its exit code, noticed at once
        await engine.stop()

    The child dies with this process, even by SIGKILL: its standard input is a pipe that only this process holds open.
    """

    def __init__(self, config: EngineConfig, log_level: str = "info") -> None:
        self._config = config
        self._log_level = log_level
        self._child: subprocess.Popen[bytes] | None = None
        self.socket: Path | None = None  # while it is there: its directory goes once the endpoint is attached
        self._last_words = b""
        self._over = threading.Event()
        self._listeners: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the child. Call it once, on the main thread: the kernel ends the child with the thread that made it.

        Raises ConfigError if the directory for temporary files cannot hold a socket, NoRoom if the system has none for
        a directory or a process.
        """
        assert self._child is None
        try:
            directory = Path(tempfile.mkdtemp(prefix="orcaserve-"))  # mode 0700: the socket in it is ours alone
        except OSError as error:
            raise NoRoom(f"no folder for the engine's socket can be made: {error.strerror}") from error
        self.socket = directory / "engine.sock"
        if len(os.fsencode(self.socket)) > MAX_SOCKET_PATH:
            directory.rmdir()
            raise ConfigError("TMPDIR", f"its name is too long for a socket in it ({MAX_SOCKET_PATH} bytes in all)")
        command = [sys.executable, "-P", "-m", ENGINE_MODULE, "--socket", str(self.socket)]
        try:
            self._child = subprocess.Popen(
                [*command, "--parent", str(os.getpid()), *words_for_child(self._log_level)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=child_environment(),
                start_new_session=True,  # Ctrl-C in a terminal reaches this process only, which ends the child in order
            )
        except BaseException as error:
            directory.rmdir()
            if isinstance(error, OSError):
                raise NoRoom(f"no process can be started: {error.strerror}") from error
            raise
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already: connect() says why
            self._child.stdin.write(self._config.to_json().encode() + b"\n")
            self._child.stdin.flush()
        threading.Thread(target=self._watch, args=(self._child,), name="engine watch", daemon=True).start()

    @property
    def pid(self) -> int:
        assert self._child is not None, "started"
        return self._child.pid

    async def connect(
        self, within: float, silence: float | None = None, start_silence: float | None = None
    ) -> EngineClient:
        """Wait until the model is loaded, `within` seconds at most, and attach. silence: see EngineClient.connect.

        Raises what the engine said in its last words: ModelError or one below it, ConfigError; EngineError otherwise.
        """
        assert self.socket is not None, "started"
        attaching = asyncio.create_task(EngineClient.connect(self.socket, silence, start_silence))
        ending = asyncio.create_task(self.wait())
        try:
            await asyncio.wait({attaching, ending}, timeout=within, return_when=asyncio.FIRST_COMPLETED)
            if attaching.done() and attaching.exception() is None:
                return attaching.result()
            # A stream that broke is but the first sign of an end whose reason follows.
            if attaching.done():
                await asyncio.wait({ending}, timeout=END_GRACE)
            if ending.done():
                raise self._reason()
            if attaching.done():
                return attaching.result()
            raise EngineError(f"the engine was not ready within {within:g} s")
        finally:
            for task in (attaching, ending):
                task.cancel()
            await asyncio.gather(attaching, ending, return_exceptions=True)

    async def wait(self) -> int:
        """The child's exit code (negative: the signal that ended it), once it has ended. Any number may wait."""
        assert self._child is not None, "started"
        over = asyncio.Event()
        with self._lock:
            if not self._over.is_set():
                self._listeners.append((asyncio.get_running_loop(), over))
            else:
                over.set()
        await over.wait()
        return self._child.returncode

    @property
    def last_words(self) -> str | None:
        """Why the child has ended, if it said so; for after `wait`. A stream that broke may not have told it."""
        try:
            return str(json.loads(self._last_words)["message"])
        except (ValueError, KeyError, TypeError):
            return None

    async def dump_stacks(self) -> None:
        """Have the child and its workers on this machine write to the log what each of their threads does. They may be
        about to be killed: it takes up to DUMP_SECONDS.
        """
        assert self._child is not None, "started"
        for pid in (self.pid, *await asyncio.to_thread(descendants, self.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, DUMP_SIGNAL)
        await asyncio.sleep(DUMP_SECONDS)

    async def kill(self) -> int:
        """End the child with SIGKILL, also one that hangs. Returns its exit code. Idempotent."""
        assert self._child is not None, "started"
        self._child.kill()
        return await self.wait()

    async def stop(self, grace: float = KILL_GRACE) -> int:
        """End the child: SIGTERM, and SIGKILL if it is still there after `grace` seconds. Returns its exit code."""
        assert self._child is not None, "started"
        self._child.terminate()
        try:
            return await asyncio.wait_for(self.wait(), grace)
        except TimeoutError:
            return await self.kill()

    def _watch(self, child: subprocess.Popen[bytes]) -> None:
        """Until the child ends; on a thread of its own, for no event loop may be running yet."""
        assert child.stdout is not None and child.stdin is not None and self.socket is not None
        self._last_words = child.stdout.read()
        child.wait()
        child.stdout.close()
        with contextlib.suppress(OSError):
            child.stdin.close()
        with contextlib.suppress(OSError):  # it does so itself, unless it was killed
            self.socket.unlink(missing_ok=True)
            self.socket.parent.rmdir()
        with self._lock:
            self._over.set()
            for loop, over in self._listeners:
                with contextlib.suppress(RuntimeError):  # that loop has been closed
                    loop.call_soon_threadsafe(over.set)

    def _reason(self) -> OrcaServeError:
        """The child's last words as the error that it raised."""
        assert self._child is not None
        try:
            words = json.loads(self._last_words)
            kind, message, name = getattr(core, words["kind"]), str(words["message"]), words["name"]
        except (ValueError, KeyError, TypeError, AttributeError):
            return EngineError(f"the engine process ended with code {self._child.returncode}")
        if kind is ConfigError:
            return ConfigError(str(name), message.removeprefix(f"{name}: "))
        if isinstance(kind, type) and issubclass(kind, ModelError | EngineError):
            return kind(message)
        return EngineError(message)
