"""Records: all batches, as they are now and as they lie on the disk.

batches/ID.json    the batch, written when its status changes
batches/ID.out     results of lines that were answered with 200, as they come; ID.err: of the others
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.batches.batch import Batch, Status
from orcaserve.serving.files.store import StorageFull, write_json

MAX_BATCHES = 1000  # that are kept; with more, the earliest that are over are forgotten
RETRY_SECONDS = 5.0  # after which something is tried again for which there was no room
KINDS = {True: "out", False: "err"}  # of results, by whether they were answered with 200
_log = logging.getLogger(__name__)


class Records:
    """Used on one event loop. news: some batch has another status than when it was last cleared."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.news = asyncio.Event()
        self._folder = folder
        self._batches: dict[str, Batch] = {}
        self._saving = asyncio.Lock()

    def load(self) -> int:
        """Read what there is from earlier. Returns how many bytes of results lie beside it."""
        found = []
        for path in self._folder.glob("*.json"):
            try:
                found.append(Batch.from_file(path))
            except (OSError, ValueError, TypeError, KeyError):
                _log.warning("a batch in the folder of files is damaged, and left out: %s", path.name)
        self._batches = {batch.id: batch for batch in sorted(found, key=lambda b: (b.created_at, b.id))}
        return sum(path.stat().st_size for kind in KINDS.values() for path in self._folder.glob(f"*.{kind}"))

    def all(self) -> list[Batch]:
        """The earliest first."""
        return list(self._batches.values())

    def get(self, batch_id: str) -> Batch:
        """Raises InvalidRequest (404)."""
        if batch_id not in self._batches:
            raise InvalidRequest("id", "there is no such batch", code="batch_not_found", status=404)
        return self._batches[batch_id]

    def results(self, batch_id: str, good: bool) -> Path:
        return self._folder / f"{batch_id}.{KINDS[good]}"

    async def add(self, batch: Batch) -> None:
        """Raises InvalidRequest if there are too many, StorageFull."""
        for other in [b for b in self._batches.values() if b.status.over]:
            if len(self._batches) < MAX_BATCHES:
                break
            self._file(other.id).unlink(missing_ok=True)
            del self._batches[other.id]
        if len(self._batches) >= MAX_BATCHES:
            message = f"there are {MAX_BATCHES} batches that are not over"
            raise InvalidRequest(None, message, code="too_many_batches", status=429)
        await self.save(batch)
        self._batches[batch.id] = batch

    def note(self, batch: Batch) -> None:
        """What need not be on the disk before a restart, or follows from what is there: counts, why it waits."""
        self._batches[batch.id] = batch

    async def change(self, batch_id: str, status: Status, **changes: Any) -> None:
        """A new status, on the disk before anybody hears of it. Waits for room, if there is none."""
        batch = self._batches[batch_id].came_to(status, self.clock(), **changes)
        await self.when_there_is_room(batch_id, lambda: self.save(batch))
        # It may have been cancelled meanwhile.
        if self._batches[batch_id].status is not Status.CANCELLING or status.over:
            self._batches[batch_id] = batch
        self.news.set()

    async def save(self, batch: Batch) -> None:
        """Raises StorageFull."""
        async with self._saving:  # what is said last of a batch is what stays
            await asyncio.to_thread(write_json, self._file(batch.id), batch.to_json())

    async def when_there_is_room(self, batch_id: str, write: Callable[[], Awaitable[object]]) -> None:
        """Write, and until there is room for it say in the batch why it stands still."""
        waited = False
        while True:
            try:
                await write()
                break
            except StorageFull as full:
                error = {"code": full.code, "line": None, "message": full.message, "param": None}
                self.note(replace(self._batches[batch_id], errors=(error,)))
                if not waited:
                    _log.warning("batch %s waits: %s", batch_id, full.message)
                waited = True
                await asyncio.sleep(RETRY_SECONDS)
        if waited:
            _log.info("batch %s goes on", batch_id)
            self.note(replace(self._batches[batch_id], errors=()))

    def _file(self, batch_id: str) -> Path:
        return self._folder / f"{batch_id}.json"
