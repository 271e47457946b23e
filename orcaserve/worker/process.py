"""A worker process: `python -m orcaserve.worker.process --folder DIR --place STAGE,SHARD --parent PID`.

On another machine than the master's there is no folder: it listens at --address, and prints the port.

Its parent, the engine master or the node (orcaserve.node), writes one line of JSON, the EngineConfig, to its standard
input and keeps that pipe open: the end of it means that the parent is gone. What goes wrong is said on the control
plane; logs go to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

from orcaserve import logs
from orcaserve.config import EngineConfig
from orcaserve.control_plane.channel import worker_socket
from orcaserve.data_plane.memory import SharedMemory
from orcaserve.data_plane.protocol import Place
from orcaserve.process import SWITCH_INTERVAL, die_with_parent, dump_stacks_on_signal, name_process
from orcaserve.worker.among import Among
from orcaserve.worker.controller import RENDEZVOUS, Site, WorkerController


def main() -> NoReturn:
    parser = argparse.ArgumentParser(prog="python -m orcaserve.worker.process", description="Started by the engine.")
    parser.add_argument("--folder", type=Path, help="where the sockets of the master's machine are")
    parser.add_argument("--address", default="127.0.0.1", help="of this machine, for the data plane")
    parser.add_argument("--store", type=int, help="file descriptor: listens for the data plane's meeting")
    parser.add_argument("--memory", type=SharedMemory.from_text, help="what the workers of this machine share")
    parser.add_argument("--among", default="0,1", help="INDEX,N: which one of how many on this machine, from 0")
    parser.add_argument("--place", required=True, help="STAGE,SHARD, counted from 0")
    parser.add_argument("--parent", type=int, required=True, help="process id of the engine")
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--log-format", choices=logs.FORMATS, default="text")
    options = parser.parse_args()
    stage, shard = map(int, options.place.split(","))
    name = f"worker s{stage}r{shard}"
    logs.set_up(options.log_level, options.log_format, name)
    dump_stacks_on_signal()
    name_process(name)
    sys.setswitchinterval(SWITCH_INTERVAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the endpoint's to handle
    line = sys.stdin.readline()
    # Until all workers have found each other there are files to remove, so the signal must be one to catch.
    if not line or not die_with_parent(options.parent, signal.SIGTERM):
        _leave(0)
    config = EngineConfig.from_json(line)
    parallel = config.parallel
    place = Place(stage, shard, parallel.pipeline_parallel_size, parallel.tensor_parallel_size)
    signal.signal(signal.SIGTERM, lambda *_: _abandon(options.folder, place))
    among = Among(*map(int, options.among.split(",")))
    site = Site(options.folder, options.address, options.store, options.memory, among)
    controller = WorkerController(config, place, site)
    threading.Thread(target=_watch_parent, args=(options.folder, place), name="parent", daemon=True).start()
    on_listening = _print_port if options.folder is None else _say_nothing
    controller.run(on_listening, lambda: _joined(options.parent))
    _leave(controller.exit_code)


def _print_port(port: int) -> None:
    """For the node, which tells the master. Whatever else is printed goes where logs go."""
    os.write(1, f"{port}\n".encode())
    os.dup2(2, 1)


def _say_nothing(port: int) -> None:
    """The master knows the socket."""


def _joined(parent: int) -> None:
    """From here on the engine removes all files. A worker that was stopped can be ended by this signal alone."""
    gc.freeze()  # what loading has made stays for good: no collection has to look at it again
    if not die_with_parent(parent, signal.SIGKILL):
        _leave(0)


def _watch_parent(folder: Path | None, place: Place) -> None:
    """Wait for the end of the parent's pipe, then end at once."""
    while os.read(0, 4096):
        pass
    _abandon(folder, place)


def _abandon(folder: Path | None, place: Place) -> NoReturn:
    """The engine is gone: end, and remove this worker's socket, the rendezvous, and the folder if this is the last."""
    with contextlib.suppress(OSError):
        if folder is None:
            _leave(0)
        worker_socket(folder, place.name).unlink(missing_ok=True)
        (folder / RENDEZVOUS).unlink(missing_ok=True)
        folder.rmdir()
    _leave(0)


def _leave(code: int) -> NoReturn:
    """End without Python's own ending, which would pull the interpreter from under an iteration in flight."""
    with contextlib.suppress(OSError):  # the log's disk may be full
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
