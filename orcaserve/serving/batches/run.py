"""BatchRun: one batch, from where it is to its end.

A result is one write at the end of a file. After a restart, lines that have one are not run again, and the others are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from orcaserve.serving.batches.batch import Batch, Status
from orcaserve.serving.batches.lines import (
    Line,
    LineError,
    answered_lines,
    read_lines,
    result_of,
    result_without_answer,
)
from orcaserve.serving.batches.records import Records
from orcaserve.serving.batches.runner import Ask, run_lines
from orcaserve.serving.files.store import FileStore, Growing
from orcaserve.serving.inside import Reply

EXPIRED = ("batch_expired", "the completion window was over before this request was run")
INPUT_GONE = LineError(None, "the input file is gone", "input_file_id", "file_not_found")
LOOK_SECONDS = 60.0  # after which the clock is looked at, which may be set meanwhile


class BatchRun:
    """ask: asks the endpoint; n_at_once: how many lines are with it at the same time."""

    def __init__(self, records: Records, store: FileStore, ask: Ask, n_at_once: int, batch_id: str) -> None:
        self._records = records
        self._store = store
        self._ask = ask
        self._n_at_once = n_at_once
        self._id = batch_id

    @property
    def _batch(self) -> Batch:
        return self._records.get(self._id)

    async def run(self) -> None:
        records = self._records
        if self._batch.status is Status.IN_PROGRESS and not self._store.has(self._batch.input_file_id):
            await records.change(self._id, Status.FAILED, errors=(INPUT_GONE.said,))
            return
        done = {} if self._batch.status is Status.FINALIZING else await self._earlier()
        results = await self._open()
        try:
            if self._batch.status is Status.IN_PROGRESS:
                expired = await self._run_lines(done, results)
                if self._batch.status is Status.IN_PROGRESS:
                    await records.change(self._id, Status.FINALIZING, errors=(), expired=expired)
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
        for path in (self._records.results(self._id, good) for good in (True, False)):
            if path.exists():
                before = path.stat().st_size
                done |= await asyncio.to_thread(answered_lines, path)
                self._store.room.give_back(before - path.stat().st_size)
        n_good = sum(done.values())
        self._records.note(replace(self._batch, completed=n_good, failed=len(done) - n_good))
        return done

    async def _open(self) -> dict[bool, Growing]:
        """Where results go: of lines that were answered with 200, and of the others."""
        results: dict[bool, Growing] = {}

        async def open_both() -> None:
            for good in (True, False):
                if good not in results:
                    results[good] = self._store.open(self._records.results(self._id, good))

        await self._records.when_there_is_room(self._id, open_both)
        return results

    async def _run_lines(self, done: Mapping[str, bool], results: Mapping[bool, Growing]) -> bool:
        """Returns whether the window was over before all lines had results."""
        told = set(done)

        async def tell(line: Line, reply: Reply) -> None:
            good = reply.status == 200
            await self._write(results[good], result_of(line, reply), good)
            told.add(line.custom_id)

        work = asyncio.create_task(run_lines(self._lines(told), self._ask, tell, self._n_at_once))
        try:
            await self._watch(work)
        finally:
            ended = work.done()
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        if ended:
            work.result()
        if ended or self._batch.status is not Status.IN_PROGRESS:
            return False
        lines = self._lines(told)
        while (line := await asyncio.to_thread(next, lines, None)) is not None:
            await self._write(results[False], result_without_answer(line, *EXPIRED), good=False)
        return True

    async def _watch(self, work: asyncio.Task[None]) -> None:
        """Until it is done, the batch is cancelled, or its window is over."""
        news = self._records.news
        while not work.done() and self._batch.status is Status.IN_PROGRESS:
            left = self._batch.expires_at - self._records.clock()
            if left <= 0:
                return
            news.clear()
            waiting = asyncio.create_task(news.wait())
            timeout = min(left, LOOK_SECONDS)
            try:
                await asyncio.wait({work, waiting}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()

    def _lines(self, told: set[str]) -> Iterator[Line]:
        """Those without a result."""
        batch = self._batch
        for line in read_lines(self._store.path(batch.input_file_id), batch.endpoint):
            assert not isinstance(line, LineError), "the input was checked, and is not changed since"
            if line.custom_id not in told:
                yield line

    async def _write(self, results: Growing, result: bytes, good: bool) -> None:
        async def append() -> None:
            results.append(result)  # here and now: it is not to be cancelled between the disk and what is known of it
            batch = self._batch
            self._records.note(
                replace(batch, completed=batch.completed + 1) if good else replace(batch, failed=batch.failed + 1)
            )

        await self._records.when_there_is_room(self._id, append)

    async def _keep(self, results: Mapping[bool, Growing], end: Status) -> None:
        """Make files of the results, and end the batch."""
        batch, kept = self._batch, {}
        for good, file_id in ((True, batch.output_file_id), (False, batch.error_file_id)):
            growing = results[good]
            if growing.size:
                name = f"{batch.id}_{'output' if good else 'error'}.jsonl"
                keep = partial(self._store.keep, growing, file_id, name, "batch_output", batch.output_seconds)
                await self._records.when_there_is_room(self._id, partial(asyncio.to_thread, keep))
            else:
                growing.discard()
            kept[good] = self._store.has(file_id)
        await self._records.change(self._id, end, has_output=kept[True], has_errors=kept[False], errors=())
