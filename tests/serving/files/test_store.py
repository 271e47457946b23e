"""A folder of files: bounded, whole after a crash, and of one process at a time."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from orcaserve.core.errors import ConfigError, InvalidRequest
from orcaserve.serving.files import store as module
from orcaserve.serving.files.store import FileStore, Growing, StorageFull, StoredFile, new_file_id, write_json


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Any:
    opened = FileStore(tmp_path / "f", 1000, clock)
    yield opened
    opened.close()


def put(store: FileStore, data: bytes, seconds: int | None = None) -> StoredFile:
    growing = store.receive()
    try:
        growing.append(data)
        return store.keep(growing, new_file_id(), "a.jsonl", "batch", seconds)
    finally:
        growing.discard()


def test_a_file_and_its_end(store: FileStore) -> None:
    file = put(store, b"abc")
    assert store.get(file.id) == file and store.path(file.id).read_bytes() == b"abc" and store.all() == [file]
    assert store.room.used == 3 and file.bytes == 3
    assert (store.path(file.id).stat().st_mode & 0o077) == 0
    store.delete(file.id)
    assert store.all() == [] and store.room.used == 0
    with pytest.raises(InvalidRequest) as gone:
        store.get(file.id)
    assert gone.value.status == 404


def test_another_start(store: FileStore, tmp_path: Path) -> None:
    files = [put(store, b"x" * n) for n in (1, 2, 3)]
    growing = store.receive()  # an upload that a crash cut
    growing.append(b"half")
    growing.close()
    with pytest.raises(ConfigError, match="another server"):
        FileStore(tmp_path / "f", 1000)
    store.close()
    again = FileStore(tmp_path / "f", 1000)
    assert again.all() == files and again.room.used == 6
    assert list((tmp_path / "f" / "incoming").iterdir()) == []
    again.close()


def test_a_crash_between_two_writes(store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of a file is written before its content is there: without the latter it never was."""
    kept = put(store, b"kept")

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    real = os.replace
    calls = []

    def second_crashes(source: Any, target: Any) -> None:
        calls.append(target)
        (real if len(calls) == 1 else crash)(source, target)

    monkeypatch.setattr(module.os, "replace", second_crashes)
    with pytest.raises(KeyboardInterrupt):
        put(store, b"lost")
    monkeypatch.setattr(module.os, "replace", real)
    store.close()
    again = FileStore(tmp_path / "f", 1000)
    assert again.all() == [kept]
    assert sorted(p.name for p in (tmp_path / "f" / "files").iterdir()) == sorted([kept.id, f"{kept.id}.json"])
    again.close()


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"id":"../x","bytes":1}'])
def test_damaged_descriptions_are_left_out(store: FileStore, tmp_path: Path, text: bytes) -> None:
    kept = put(store, b"kept")
    store.close()
    (tmp_path / "f" / "files" / "file-0.json").write_bytes(text)
    again = FileStore(tmp_path / "f", 1000)
    assert again.all() == [kept]
    again.close()


def test_room(store: FileStore) -> None:
    put(store, b"x" * 900)
    growing = store.receive()
    growing.append(b"y" * 60)
    with pytest.raises(StorageFull) as full:
        growing.append(b"y" * 41)
    assert full.value.status == 413 and full.value.code == "files_full" and "1000" in full.value.message
    assert growing.size == 60 and growing.path.read_bytes() == b"y" * 60
    growing.append(b"y" * 40)
    growing.discard()
    assert store.room.used == 900 and not growing.path.exists()
    growing.discard()
    assert store.room.used == 900


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_keeps_what_there_is(store: FileStore, monkeypatch: pytest.MonkeyPatch, reason: int) -> None:
    growing = store.receive()
    growing.append(b"before")
    real = os.write
    left = 3

    def write(fd: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(reason, "no room")
        n = real(fd, data[:left])
        left -= n
        return n

    monkeypatch.setattr(module.os, "write", write)
    with pytest.raises(StorageFull) as full:
        growing.append(b"after")
    assert full.value.status == 507 and full.value.code == "disk_full"
    monkeypatch.setattr(module.os, "write", real)
    assert growing.path.read_bytes() == b"before" and store.room.used == 6
    growing.append(b"after")
    assert growing.path.read_bytes() == b"beforeafter"
    growing.discard()


def test_a_description_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(StorageFull):
        write_json(path, {"a": 2})
    assert json.loads(path.read_bytes()) == {"a": 1} and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_expiry(store: FileStore, clock: Clock) -> None:
    short, long = put(store, b"a", 100), put(store, b"b")
    assert short.expires_at == 1_000_100 and short.said["expires_at"] == 1_000_100
    clock.now += 99
    assert store.all() == [short, long]
    store.in_use = lambda name: name == short.id
    clock.now += 1
    assert store.all() == [short, long]  # a batch still reads it
    store.in_use = lambda _: False
    assert store.all() == [long] and store.room.used == 1


def test_a_file_in_use_is_not_deleted(store: FileStore) -> None:
    file = put(store, b"a")
    store.in_use = lambda name: name == file.id
    with pytest.raises(InvalidRequest) as refused:
        store.delete(file.id)
    assert refused.value.code == "file_in_use" and refused.value.status == 400


def test_too_many(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILES", 1)
    put(store, b"a")
    with pytest.raises(InvalidRequest, match="delete some"):
        store.receive()


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="--files-dir"):
        FileStore(tmp_path / "file", 1000)


def test_growing_goes_on_at_its_end(store: FileStore, tmp_path: Path) -> None:
    for part in (b"a", b"bc"):
        growing = Growing(tmp_path / "x", store.room)
        growing.append(part)
        growing.close()
    assert (tmp_path / "x").read_bytes() == b"abc"
