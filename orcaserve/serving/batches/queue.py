"""BatchQueue: batches one after another, in order of creation, over restarts of the server.

    batches/ID.json    the batch, written when its status changes
    batches/ID.out     results of lines that were answered with 200, as they come; ID.err: of the others

A result is one write at the end of a file. After a restart, lines that have one are not run again, and the others are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.batches.batch import Batch, Status
from orcaserve.serving.batches.lines import (
    Line,
    LineError,
    answered_lines,
    check_lines,
    read_lines,
    result_of,
    result_without_answer,
)
from orcaserve.serving.batches.runner import Ask, run_lines
from orcaserve.serving.files.store import FileStore, Growing, StorageFull, new_file_id, write_json
from orcaserve.serving.inside import Reply

MAX_BATCHES = 1000  # that are kept; with more, the earliest that are over are forgotten
RETRY_SECONDS = 5.0  # after which something is tried again for which there was no room
EXPIRED = ("batch_expired", "the completion window was over before this request was run")
_log = logging.getLogger(__name__)


class BatchQueue:
    """Used on one event loop.

    ask: asks the endpoint; n_at_once: how many lines are with it at the same time.
    """

    def __init__(
        self, store: FileStore, ask: Ask, n_at_once: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._ask = ask
        self._n_at_once = n_at_once
        self._clock = clock
        self._batches: dict[str, Batch] = {}
        self._news = asyncio.Event()  # there may be something to do for the main task
        self._saving = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        store.in_use = self.uses

    def start(self) -> None:
        """Read what there is from earlier, and go on with it."""
        found = []
        for path in self._store.batches.glob("*.json"):
            try:
                found.append(Batch.from_file(path))
            except (OSError, ValueError, TypeError, KeyError):
                _log.warning("a batch in the folder of files is damaged, and left out: %s", path.name)
        for batch in sorted(found, key=lambda b: (b.created_at, b.id)):
            self._batches[batch.id] = batch
            if not batch.status.over:
                _log.info("batch %s goes on where it was (%s)", batch.id, batch.status.value)
            if batch.status is Status.VALIDATING:
                self._spawn(self._validate(batch.id))
        for path in (*self._store.batches.glob("*.out"), *self._store.batches.glob("*.err")):
            self._store.room.used += path.stat().st_size
        self._spawn(self._main())

    def stop(self) -> None:
        """Begin no more lines, and give up those under way: they are run again after a restart."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        self.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def create(
        self,
        endpoint: str,
        input_file_id: str,
        window: str,
        seconds: int,
        metadata: Mapping[str, str] | None,
        output_seconds: int | None,
    ) -> Batch:
        """Raises InvalidRequest if there are too many, StorageFull."""
        self._forget_some()
        now = int(self._clock())
        batch = Batch(
            f"batch_{secrets.token_hex(12)}", endpoint, input_file_id, window, now, now + seconds,
            new_file_id(), new_file_id(), metadata, output_seconds,
        )  # fmt: skip
        await self._save(batch)
        self._batches[batch.id] = batch
        self._spawn(self._validate(batch.id))
        return batch

    def get(self, batch_id: str) -> Batch:
        """Raises InvalidRequest (404)."""
        if batch_id not in self._batches:
            raise InvalidRequest("id", "there is no such batch", code="batch_not_found", status=404)
        return self._batches[batch_id]

    def all(self) -> list[Batch]:
        """The earliest first."""
        return list(self._batches.values())

    async def cancel(self, batch_id: str) -> Batch:
        """Raises InvalidRequest for a batch that is over. Idempotent while it is not."""
        batch = self.get(batch_id)
        if batch.status.over or batch.status is Status.FINALIZING:
            message = f"the batch is {batch.status.value}: it cannot be cancelled any more"
            raise InvalidRequest("id", message, code="batch_over")
        if batch.status is not Status.CANCELLING:
            batch = self._batches[batch_id] = batch.came_to(Status.CANCELLING, self._clock())
            self._news.set()
            with contextlib.suppress(StorageFull):  # it is written again when it has ended
                await self._save(batch)
        return self._batches[batch_id]

    def uses(self, file_id: str) -> bool:
        return any(batch.input_file_id == file_id and not batch.status.over for batch in self._batches.values())

    def _path(self, batch_id: str, kind: str) -> Path:
        return self._store.batches / f"{batch_id}.{kind}"

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("batches cannot go on before a restart", exc_info=error)

    def _forget_some(self) -> None:
        for batch in [b for b in self._batches.values() if b.status.over]:
            if len(self._batches) < MAX_BATCHES:
                return
            self._path(batch.id, "json").unlink(missing_ok=True)
            del self._batches[batch.id]
        if len(self._batches) >= MAX_BATCHES:
            message = f"there are {MAX_BATCHES} batches that are not over"
            raise InvalidRequest(None, message, code="too_many_batches", status=429)

    async def _validate(self, batch_id: str) -> None:
        batch = self._batches[batch_id]
        if not self._store.has(batch.input_file_id):
            total, errors = 0, [LineError(None, "the input file is gone", "input_file_id", "file_not_found")]
        else:
            path = self._store.path(batch.input_file_id)
            total, errors = await asyncio.to_thread(check_lines, path, batch.endpoint)
        if self._batches[batch_id].status is not Status.VALIDATING:
            return  # cancelled meanwhile
        if errors:
            await self._change(batch_id, Status.FAILED, errors=tuple(error.said for error in errors))
        else:
            await self._change(batch_id, Status.IN_PROGRESS, total=total)

    async def _main(self) -> None:
        while True:
            self._news.clear()
            unfinished = (Status.IN_PROGRESS, Status.FINALIZING, Status.CANCELLING)
            batch = next((b for b in self._batches.values() if b.status in unfinished), None)
            if batch is None:
                await self._news.wait()
            else:
                await _Run(self, batch.id).run()

    async def _change(self, batch_id: str, status: Status, **changes: Any) -> None:
        """A new status, on the disk before anybody hears of it. Waits for room, if there is none."""
        batch = self._batches[batch_id].came_to(status, self._clock(), **changes)
        await self._when_there_is_room(batch_id, lambda: self._save(batch))
        if self._batches[batch_id].status is not Status.CANCELLING or status.over:  # it may have been cancelled meanwhile
            self._batches[batch_id] = batch
        self._news.set()

    async def _save(self, batch: Batch) -> None:
        """Raises StorageFull."""
        async with self._saving:  # what is said last of a batch is what stays
            await asyncio.to_thread(write_json, self._path(batch.id, "json"), batch.to_json())

    async def _when_there_is_room(self, batch_id: str, write: Callable[[], Awaitable[object]]) -> None:
        """Write, and until there is room for it say in the batch why it stands still."""
        told = False
        while True:
            try:
                await write()
                break
            except StorageFull as full:
                error = {"code": full.code, "line": None, "message": full.message, "param": None}
                self._batches[batch_id] = replace(self._batches[batch_id], errors=(error,))
                if not told:
                    _log.warning("batch %s waits: %s", batch_id, full.message)
                    told = True
                await asyncio.sleep(RETRY_SECONDS)
        if told:
            _log.info("batch %s goes on", batch_id)
            self._batches[batch_id] = replace(self._batches[batch_id], errors=())


class _Run:
    """One batch, from where it is to its end."""

    def __init__(self, queue: BatchQueue, batch_id: str) -> None:
        self._queue = queue
        self._id = batch_id

    @property
    def _batch(self) -> Batch:
        return self._queue._batches[self._id]

    async def run(self) -> None:
        queue = self._queue
        if not queue._store.has(self._batch.input_file_id) and self._batch.status is Status.IN_PROGRESS:
            gone = LineError(None, "the input file is gone", "input_file_id", "file_not_found")
            await queue._change(self._id, Status.FAILED, errors=(gone.said,))
            return
        done = {} if self._batch.status is Status.FINALIZING else await self._earlier()
        results = await self._open()
        try:
            if self._batch.status is Status.IN_PROGRESS:
                expired = await self._run_lines(done, results)
                if self._batch.status is Status.IN_PROGRESS:
                    await queue._change(self._id, Status.FINALIZING, errors=(), expired=expired)
            if self._batch.status is Status.CANCELLING:
                end = Status.CANCELLED
            else:
                end = Status.EXPIRED if self._batch.expired else Status.COMPLETED
            await self._keep(results, end)
        finally:
            for growing in results.values():
                growing.close()

    async def _earlier(self) -> dict[str, bool]:
        """Results that there are from before a restart."""
        done: dict[str, bool] = {}
        for path in (self._queue._path(self._id, kind) for kind in ("out", "err")):
            if path.exists():
                before = path.stat().st_size
                done |= await asyncio.to_thread(answered_lines, path)
                self._queue._store.room.give_back(before - path.stat().st_size)
        n_good = sum(done.values())
        self._queue._batches[self._id] = replace(self._batch, completed=n_good, failed=len(done) - n_good)
        return done

    async def _open(self) -> dict[bool, Growing]:
        """Where results go: of lines that were answered with 200, and of the others."""
        results: dict[bool, Growing] = {}

        async def open_both() -> None:
            for good, kind in ((True, "out"), (False, "err")):
                if good not in results:
                    results[good] = self._queue._store.open(self._queue._path(self._id, kind))

        await self._queue._when_there_is_room(self._id, open_both)
        return results

    async def _run_lines(self, done: Mapping[str, bool], results: Mapping[bool, Growing]) -> bool:
        """Returns whether the window was over before all lines had results."""
        queue = self._queue
        told = set(done)

        async def tell(line: Line, reply: Reply) -> None:
            good = reply.status == 200
            await self._write(results[good], line, result_of(line, reply), good)
            told.add(line.custom_id)

        work = asyncio.create_task(run_lines(self._lines(told), queue._ask, tell, queue._n_at_once))
        try:
            while not work.done() and self._batch.status is Status.IN_PROGRESS:
                left = self._batch.expires_at - queue._clock()
                if left <= 0:
                    break
                queue._news.clear()
                news = asyncio.create_task(queue._news.wait())
                await asyncio.wait({work, news}, timeout=min(left, 60.0), return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
        finally:
            ended = work.done()
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        if ended:
            work.result()
        if ended or self._batch.status is not Status.IN_PROGRESS:
            return False
        for line in self._lines(told):
            await self._write(results[False], line, result_without_answer(line, *EXPIRED), good=False)
        return True

    def _lines(self, without: set[str]) -> Iterator[Line]:
        batch = self._batch
        for line in read_lines(self._queue._store.path(batch.input_file_id), batch.endpoint):
            assert not isinstance(line, LineError), "the input was checked, and is not changed since"
            if line.custom_id not in without:
                yield line

    async def _write(self, results: Growing, line: Line, result: bytes, good: bool) -> None:
        async def append() -> None:
            results.append(result)  # here and now: it is not to be cancelled between the disk and what is known of it
            batch = self._batch
            counts = {"completed": batch.completed + 1} if good else {"failed": batch.failed + 1}
            self._queue._batches[self._id] = replace(batch, **counts)

        await self._queue._when_there_is_room(self._id, append)

    async def _keep(self, results: Mapping[bool, Growing], end: Status) -> None:
        """Make files of the results, and end the batch."""
        queue, batch = self._queue, self._batch
        kept = {}
        for good, file_id in ((True, batch.output_file_id), (False, batch.error_file_id)):
            growing = results[good]
            if growing.size:
                name = f"{batch.id}_{'output' if good else 'error'}.jsonl"
                keep = partial(queue._store.keep, growing, file_id, name, "batch_output", batch.output_seconds)
                await queue._when_there_is_room(self._id, partial(asyncio.to_thread, keep))
            else:
                growing.discard()
            kept[good] = queue._store.has(file_id)
        await queue._change(self._id, end, has_output=kept[True], has_errors=kept[False], errors=())
