"""FileStore: files in a folder of ours, never more than so many bytes of them. Whatever is there survives a restart.

    FOLDER/lock           held by the process that uses the folder
          /incoming/      uploads under way; emptied at the start
          /files/ID       a file's content, and ID.json what is known of it. The latter is written first, so that a
                          content is never without; one without its content is from a crash, and removed at the start
          /batches/       see batches/

Names of files are made here: nothing of what a client sends becomes part of a path.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orcaserve.core.errors import ConfigError, InvalidRequest

MAX_FILES = 10_000
_log = logging.getLogger(__name__)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StorageFull(InvalidRequest):
    """There is no room for what shall be kept: neither was anything of it kept, nor anything else lost."""

    @classmethod
    def disk(cls) -> StorageFull:
        return cls(None, "the disk that holds files is full", "disk_full", 507)

    @classmethod
    def quota(cls, limit: int) -> StorageFull:
        message = f"all files together may have {limit} bytes (--max-files-bytes), and there is no room: delete some"
        return cls(None, message, "files_full", 413)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Times are seconds since 1970."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None

    @property
    def said(self) -> dict[str, Any]:
        """The file object of the API."""
        return {"object": "file", **asdict(self), "status": "processed", "status_details": None}


class Growing:
    """A file that is being written, at its end only."""

    def __init__(self, path: Path, room: Room) -> None:
        self.path = path
        self._room = room
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.size = os.fstat(self._fd).st_size

    def append(self, data: bytes) -> None:
        """All of it or nothing. Raises StorageFull. From any thread, one at a time."""
        self._room.take(len(data))
        try:
            written = 0
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            self._room.give_back(len(data))
            os.ftruncate(self._fd, self.size)
            raise _as_full(error) from error
        self.size += len(data)

    def sync(self) -> None:
        """Return once it is on the disk. Raises StorageFull: some systems say so only now."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise _as_full(error) from error

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def discard(self) -> None:
        """Idempotent, and harmless once it was kept elsewhere."""
        if self._fd >= 0:
            self.close()
            if self.path.exists():
                self.path.unlink()
                self._room.give_back(self.size)


class Room:
    """How many bytes there are, of all contents together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._lock = threading.Lock()

    def take(self, n: int) -> None:
        with self._lock:
            if self.used + n > self.limit:
                raise StorageFull.quota(self.limit)
            self.used += n

    def take_anyway(self, n: int) -> None:
        """For what is there already."""
        self.give_back(-n)

    def give_back(self, n: int) -> None:
        with self._lock:
            self.used -= n


class FileStore:
    """Used from one thread, but for what a Growing file does.

    in_use: asked before a file is deleted.
    """

    def __init__(self, folder: Path, max_bytes: int, clock: Callable[[], float] = time.time) -> None:
        """Raises ConfigError if the folder cannot be used, or is by another process."""
        self.room = Room(max_bytes)
        self.in_use: Callable[[str], bool] = lambda _: False
        self._clock = clock
        self._folder = folder
        try:
            for part in ("files", "incoming", "batches"):
                (folder / part).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError("--files-dir", f"{folder} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise ConfigError("--files-dir", f"{folder} is used by another server: give another folder") from error
        for leftover in (folder / "incoming").iterdir():
            leftover.unlink()
        self._files: dict[str, StoredFile] = {}
        for file in map(self._read, (folder / "files").glob("*.json")):
            if file is not None:
                self._files[file.id] = file
        self.room.used = sum(file.bytes for file in self._files.values())

    @property
    def batches(self) -> Path:
        """The folder of batches."""
        return self._folder / "batches"

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def all(self) -> list[StoredFile]:
        """The earliest first."""
        self._drop_expired()
        return sorted(self._files.values(), key=lambda file: (file.created_at, file.id))

    def get(self, file_id: str) -> StoredFile:
        """Raises InvalidRequest (404)."""
        self._drop_expired()
        if file_id not in self._files:
            raise InvalidRequest("id", "there is no such file", code="file_not_found", status=404)
        return self._files[file_id]

    def has(self, file_id: str) -> bool:
        return file_id in self._files

    def path(self, file_id: str) -> Path:
        """Where the content of a file lies that is there."""
        assert file_id in self._files, file_id
        return self._folder / "files" / file_id

    def receive(self) -> Growing:
        """A file for something that comes. Raises InvalidRequest if there are too many, StorageFull."""
        self._drop_expired()
        if len(self._files) >= MAX_FILES:
            raise InvalidRequest("file", f"there are {MAX_FILES} files already: delete some", code="files_full")
        return self.open(self._folder / "incoming" / secrets.token_hex(12))

    def open(self, path: Path) -> Growing:
        """A file of ours that is to grow. Raises StorageFull."""
        try:
            return Growing(path, self.room)
        except OSError as error:
            raise _as_full(error) from error

    def keep(self, content: Growing, file_id: str, filename: str, purpose: str, seconds: int | None) -> StoredFile:
        """Make a file of what has come; it is on the disk when this returns. Raises StorageFull.

        seconds: after which it goes, or None. Again with the same id is the same: a batch may have to.
        """
        now = int(self._clock())
        file = StoredFile(file_id, content.size, now, filename, purpose, None if seconds is None else now + seconds)
        content.sync()
        write_json(self._folder / "files" / f"{file_id}.json", asdict(file))
        os.replace(content.path, self._folder / "files" / file_id)
        content.close()
        self._files[file_id] = file
        return file

    def delete(self, file_id: str) -> None:
        """Raises InvalidRequest."""
        file = self.get(file_id)
        if self.in_use(file_id):
            raise InvalidRequest("id", "a batch that is not over uses this file", code="file_in_use")
        self._remove(file)

    def _remove(self, file: StoredFile) -> None:
        self.path(file.id).unlink(missing_ok=True)
        (self._folder / "files" / f"{file.id}.json").unlink(missing_ok=True)
        del self._files[file.id]
        self.room.give_back(file.bytes)

    def _drop_expired(self) -> None:
        now = self._clock()
        for file in list(self._files.values()):
            if file.expires_at is not None and file.expires_at <= now and not self.in_use(file.id):
                self._remove(file)

    def _read(self, path: Path) -> StoredFile | None:
        try:
            file = StoredFile(**json.loads(path.read_bytes()))
            if file.id != path.stem or (path.parent / file.id).stat().st_size != file.bytes:
                raise ValueError
        except FileNotFoundError:
            path.unlink()
            return None
        except (OSError, ValueError, TypeError):
            _log.warning("a file in the folder of files is damaged, and left out: %s", path.name)
            return None
        return file


_ticks = itertools.count(time.time_ns())


def new_file_id() -> str:
    return id_in_order("file-")


def id_in_order(prefix: str) -> str:
    """An id that nobody guesses; of two, the later one is the greater, over a restart too."""
    return f"{prefix}{next(_ticks):016x}{secrets.token_hex(4)}"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a file as a whole, on the disk too. Raises StorageFull, and leaves the earlier one then."""
    new = path.with_suffix(".new")
    try:
        with open(new, "wb") as file:
            file.write(json.dumps(value).encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise _as_full(error) from error


def _as_full(error: OSError) -> Exception:
    return StorageFull.disk() if error.errno in _FULL else error
