"""The engine process: `python -m orcaserve.engine.process --socket PATH --parent PID`.

Its parent (orcaserve.serving.launcher) writes one line of JSON, the EngineConfig, to its standard input and keeps that
pipe open: the end of it means that the parent is gone. Standard output takes this process's last words, one line of
JSON, if it cannot go on; the parent reads them. Logs go to standard error.

    exit code 0: asked to end (SIGTERM) or left by its endpoint; 1: it failed; 3: the model or a setting is at fault
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from orcaserve import logs
from orcaserve.config import EngineConfig
from orcaserve.control_plane.service import EngineServer
from orcaserve.core import ConfigError, EngineError, ModelError, OrcaServeError
from orcaserve.process import SWITCH_INTERVAL, die_with_parent, dump_stacks_on_signal, name_process

if TYPE_CHECKING:
    from orcaserve.engine.host import EngineHost

EXIT_FAILED = 1
EXIT_CANNOT_LOAD = 3

_log = logging.getLogger(__name__)


class _Stop(BaseException):
    """SIGTERM came. Raised on the main thread, wherever it is."""


class _EngineProcess:
    """One life of the engine process, from its first signal handler to its exit code."""

    def __init__(self, socket: Path, parent: int) -> None:
        self._socket = socket
        self._parent = parent
        self._end = threading.Event()
        self._exit_code = 0
        self._host: EngineHost | None = None
        self._last_words = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever else is printed must not mix with them

    def run(self) -> int:
        try:
            # Until the endpoint has attached there are files to remove if it dies, so the signal must be one to catch.
            if die_with_parent(self._parent, signal.SIGTERM) and (line := sys.stdin.readline()):
                threading.Thread(target=self._watch_parent, name="parent", daemon=True).start()
                self._serve(EngineConfig.from_json(line))
        except _Stop:
            pass
        except OrcaServeError as error:
            self._exit_code = EXIT_CANNOT_LOAD if isinstance(error, ModelError | ConfigError) else EXIT_FAILED
            self._say(error)
        except Exception as error:
            _log.exception("the engine process failed")
            self._exit_code = EXIT_FAILED
            self._say(EngineError(f"the engine process failed: {type(error).__name__}"))
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._remove_files()
        return self._exit_code

    def _serve(self, config: EngineConfig) -> None:
        server = EngineServer(self._socket, on_end=self._end.set)
        server.start()
        told = False
        try:
            from orcaserve.engine.host import EngineHost  # late: the socket is there first

            host = self._host = EngineHost.load(config, server.report, lambda message: self._fail(server, message))
            gc.freeze()  # what loading has made stays for good: no collection has to look at it again
            server.open(host.facts, host)
            server.attached.wait()
            self._remove_files()  # connected for good: nothing is left to be found, or to be left behind
            if die_with_parent(self._parent, signal.SIGKILL):
                self._end.wait()
        except _Stop:
            told = True
            raise
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # in the midst of its closing gRPC would be left half shut
            server.close()
            if self._host is not None:
                self._host.kill(for_good=told)

    def _fail(self, server: EngineServer, message: str) -> None:
        self._exit_code = EXIT_FAILED
        self._say(EngineError(message))  # too: what the stream has not sent when this process ends is lost
        server.fail(message)
        self._end.set()

    def _say(self, error: OrcaServeError) -> None:
        """Last words, if the parent still listens."""
        words = {"kind": type(error).__name__, "message": str(error), "name": getattr(error, "name", None)}
        with contextlib.suppress(OSError):
            print(json.dumps(words), file=self._last_words, flush=True)

    def _watch_parent(self) -> None:
        """Wait for the end of the parent's pipe, then end at once: nobody is left to be told anything."""
        while os.read(0, 4096):
            pass
        self._remove_files()
        _leave(0)

    def _remove_files(self) -> None:
        """The socket and its directory, which is left alone if it is not ours alone. Idempotent."""
        with contextlib.suppress(OSError):
            self._socket.unlink(missing_ok=True)
            self._socket.parent.rmdir()


def main() -> NoReturn:
    parser = argparse.ArgumentParser(prog="python -m orcaserve.engine.process", description="Started by the endpoint.")
    parser.add_argument("--socket", type=Path, required=True, help="Unix socket to make, in a directory of its own")
    parser.add_argument("--parent", type=int, required=True, help="process id of the endpoint")
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--log-format", choices=logs.FORMATS, default="text")
    options = parser.parse_args()
    logs.set_up(options.log_level, options.log_format, "engine")
    dump_stacks_on_signal()
    name_process("engine")
    sys.setswitchinterval(SWITCH_INTERVAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the endpoint's to handle
    signal.signal(signal.SIGTERM, _stop)
    _leave(_EngineProcess(options.socket, options.parent).run())


def _stop(signum: int, frame: FrameType | None) -> None:
    raise _Stop


def _leave(code: int) -> NoReturn:
    """End without Python's own ending, which would pull the interpreter from under an iteration in flight."""
    with contextlib.suppress(OSError):  # the log's disk may be full
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
