"""BatchQueue: batches one after another, in order of creation, over restarts of the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.batches.batch import Batch, Status
from orcaserve.serving.batches.lines import check_lines
from orcaserve.serving.batches.records import Records
from orcaserve.serving.batches.run import INPUT_GONE, BatchRun
from orcaserve.serving.batches.runner import Ask
from orcaserve.serving.files.store import FileStore, StorageFull, id_in_order, new_file_id

_log = logging.getLogger(__name__)
TO_RUN = (Status.IN_PROGRESS, Status.FINALIZING, Status.CANCELLING)


class BatchQueue:
    """Used on one event loop.

    ask: asks the endpoint; n_at_once: how many lines are with it at the same time.
    """

    def __init__(self, store: FileStore, ask: Ask, n_at_once: int, clock: Callable[[], float] = time.time) -> None:
        self.records = Records(store.batches, clock)
        self._store = store
        self._ask = ask
        self._n_at_once = n_at_once
        self._tasks: set[asyncio.Task[None]] = set()
        store.in_use = self._uses

    def start(self) -> None:
        """Go on with what there is from earlier."""
        self._store.room.take_anyway(self.records.load())
        for batch in self.records.all():
            if not batch.status.over:
                _log.info("batch %s goes on where it was (%s)", batch.id, batch.status.value)
            if batch.status is Status.VALIDATING:
                self._spawn(self._validate(batch.id))
        self._spawn(self._run_all())

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
        now = int(self.records.clock())
        batch = Batch(
            id_in_order("batch_"), endpoint, input_file_id, window, now, now + seconds,
            new_file_id(), new_file_id(), metadata, output_seconds,
        )  # fmt: skip
        await self.records.add(batch)
        self._spawn(self._validate(batch.id))
        return batch

    async def cancel(self, batch_id: str) -> Batch:
        """Raises InvalidRequest for a batch that is over. Idempotent while it is not."""
        batch = self.records.get(batch_id)
        if batch.status.over or batch.status is Status.FINALIZING:
            message = f"the batch is {batch.status.value}: it cannot be cancelled any more"
            raise InvalidRequest("id", message, code="batch_over")
        if batch.status is not Status.CANCELLING:
            batch = batch.came_to(Status.CANCELLING, self.records.clock())
            self.records.note(batch)
            self.records.news.set()
            with contextlib.suppress(StorageFull):  # it is written again when it has ended
                await self.records.save(batch)
        return batch

    def _uses(self, file_id: str) -> bool:
        return any(batch.input_file_id == file_id and not batch.status.over for batch in self.records.all())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        # Not in the context of a request: it outlives that, and what it logs is not about it.
        task = asyncio.create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("batches cannot go on before a restart", exc_info=error)

    async def _validate(self, batch_id: str) -> None:
        batch = self.records.get(batch_id)
        total, errors = 0, [INPUT_GONE]
        if self._store.has(batch.input_file_id):
            path = self._store.path(batch.input_file_id)
            total, errors = await asyncio.to_thread(check_lines, path, batch.endpoint)
        if self.records.get(batch_id).status is not Status.VALIDATING:
            return  # cancelled meanwhile
        if errors:
            await self.records.change(batch_id, Status.FAILED, errors=tuple(error.said for error in errors))
        else:
            await self.records.change(batch_id, Status.IN_PROGRESS, total=total)

    async def _run_all(self) -> None:
        while True:
            self.records.news.clear()
            batch = next((batch for batch in self.records.all() if batch.status in TO_RUN), None)
            if batch is None:
                await self.records.news.wait()
            else:
                await BatchRun(self.records, self._store, self._ask, self._n_at_once, batch.id).run()
