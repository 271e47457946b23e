"""RotatingFile: the parts of a schedule log on disk, written by a thread of their own."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from queue import SimpleQueue

from orcaserve.core import ConfigError
from orcaserve.schedule_log.format import KIND

BEGINNING = f'{{"kind":"{KIND}"'.encode()
CLOSE_SECONDS = 5.0  # that the disk has to take what is left
MOST_WAITING = 16 * 2**20  # bytes that a slow disk may have the memory hold

_log = logging.getLogger(__name__)


def part_path(path: Path, age: int) -> Path:
    """The newest part is the file itself; `.1` is the one before it, and so on."""
    return path if age == 0 else path.with_name(f"{path.name}.{age}")


class RotatingFile:
    """A Sink. At most n_files parts are kept: `path`, `path.1` and so on, the oldest last.

    What cannot be written is lost, and so is all that comes after it: one warning says so, and nobody waits.
    Raises ConfigError at once if the file cannot be made at all.
    """

    def __init__(self, path: Path, n_files: int) -> None:
        self._path, self._n_files = path, n_files
        self._queue: SimpleQueue[tuple[bool, bytes] | None] = SimpleQueue()  # whether a part begins; None: the end
        self._lock = threading.Lock()
        self._n_waiting = 0
        self._lost = False
        self._file = -1
        try:
            if path.is_file() and not _is_log(path):
                raise ConfigError("--schedule-log", f"{path} is there already, and is no schedule log")
            self._rotate()
        except OSError as error:
            raise ConfigError("--schedule-log", f"{path}: {error.strerror or error}") from error
        self._fresh = True  # the first part has its file already
        self._thread = threading.Thread(target=self._run, name="schedule log", daemon=True)
        self._thread.start()

    def write(self, lines: bytes) -> None:
        self._put(False, lines)

    def next_part(self, header: bytes) -> None:
        self._put(True, header)

    def close(self) -> None:
        """Write what is left; as long as the disk takes it."""
        self._queue.put(None)
        self._thread.join(CLOSE_SECONDS)

    def _put(self, begins: bool, data: bytes) -> None:
        with self._lock:
            if self._lost:
                return
            if self._n_waiting + len(data) <= MOST_WAITING:
                self._n_waiting += len(data)
                self._queue.put((begins, data))
                return
        self._lose("the disk is too slow")

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            begins, data = item
            if self._lost:
                continue
            try:
                if begins and not self._fresh:
                    self._rotate()
                self._fresh = False
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(self._file, rest) :]
            except OSError as error:
                self._lose(error.strerror or str(error))
            with self._lock:
                self._n_waiting -= len(data)
        os.close(self._file)

    def _rotate(self) -> None:
        """Every part grows older by one; the oldest goes."""
        if self._path.is_file():
            for age in range(self._n_files - 1, 0, -1):
                if part_path(self._path, age - 1).exists():
                    os.replace(part_path(self._path, age - 1), part_path(self._path, age))
        fresh = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        if self._file >= 0:
            os.close(self._file)
        self._file = fresh

    def _lose(self, why: str) -> None:
        with self._lock:
            if self._lost:
                return
            self._lost = True
        _log.warning("the schedule log %s ends here: %s; requests go on", self._path, why)


def _is_log(path: Path) -> bool:
    """Whether nothing is lost that somebody else has written."""
    with path.open("rb") as file:
        start = file.read(len(BEGINNING))
    return start == BEGINNING or not start
