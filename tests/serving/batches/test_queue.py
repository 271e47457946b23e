"""Batches one after another: statuses, counts, restarts, windows, cancelling, and disks without room."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orcaserve.core.errors import InvalidRequest
from orcaserve.logs import TextFormatter, about
from orcaserve.serving.batches import queue, runner
from orcaserve.serving.batches import records as module
from orcaserve.serving.batches.batch import Batch, Status, window_seconds
from orcaserve.serving.batches.queue import BatchQueue
from orcaserve.serving.files.store import FileStore, StorageFull, new_file_id
from orcaserve.serving.inside import Reply

pytestmark = pytest.mark.anyio
URL = "/v1/completions"


class Endpoint:
    """Answers a line by its prompt: a number is the status, `wait` waits for `release`. Knows who is with it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.n_now = self.most_at_once = 0
        self.release = asyncio.Event()
        self.statuses: dict[str, list[int]] = {}

    async def ask(self, url: str, body: bytes) -> Reply:
        prompt = json.loads(body)["prompt"]
        self.asked.append(prompt)
        self.n_now += 1
        self.most_at_once = max(self.most_at_once, self.n_now)
        try:
            if prompt.startswith("wait"):
                await self.release.wait()
            await asyncio.sleep(0)
        finally:
            self.n_now -= 1
        script = self.statuses.get(prompt)
        status = script.pop(0) if script else int(prompt) if prompt.isdigit() else 200
        code = "engine_error" if status == 500 else "x"
        answer = {"id": "x", "prompt": prompt} if status == 200 else {"error": {"code": code}}
        return Reply(status, "x", json.dumps(answer).encode())


class Bench:
    """A folder, and whoever uses it now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.endpoint = Endpoint()
        self.now = 1_000_000.0
        self.open()

    def open(self, max_bytes: int = 10**6) -> None:
        self.store = FileStore(self.folder, max_bytes, lambda: self.now)
        self.queue = BatchQueue(self.store, self.endpoint.ask, 2, lambda: self.now)
        self.queue.start()

    async def close(self) -> None:
        await self.queue.close()
        self.store.close()

    async def restart(self, max_bytes: int = 10**6) -> None:
        await self.close()
        self.endpoint.asked.clear()
        self.open(max_bytes)

    def upload(self, *prompts: str) -> str:
        lines = [
            json.dumps({"custom_id": f"{i}-{p}", "method": "POST", "url": URL, "body": {"prompt": p}})
            for i, p in enumerate(prompts)
        ]
        growing = self.store.receive()
        growing.append("\n".join(lines).encode())
        return self.store.keep(growing, new_file_id(), "in.jsonl", "batch", None).id

    async def create(self, *prompts: str, seconds: int = 3600) -> str:
        return (await self.queue.create(URL, self.upload(*prompts), "1h", seconds, {"a": "b"}, None)).id

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    async def end_of(self, batch_id: str) -> Batch:
        await self.until(lambda: self.queue.records.get(batch_id).status.over)
        return self.queue.records.get(batch_id)

    def results(self, file_id: str) -> list[dict[str, Any]]:
        assert self.store.has(file_id)
        return [json.loads(line) for line in self.store.path(file_id).read_bytes().splitlines()]


@pytest.fixture
async def bench(tmp_path: Path, one_loop: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(runner, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.005)
    bench = Bench(tmp_path / "f")
    yield bench
    await bench.close()


async def test_a_batch(bench: Bench) -> None:
    batch_id = await bench.create("a", "404", "b", "500", "c")
    created = bench.queue.records.get(batch_id).said
    assert created["status"] == "validating" and created["object"] == "batch" and created["metadata"] == {"a": "b"}
    assert created["expires_at"] == created["created_at"] + 3600 and created["output_file_id"] is None
    batch = await bench.end_of(batch_id)
    said = batch.said
    assert said["status"] == "completed" and said["request_counts"] == {"total": 5, "completed": 3, "failed": 2}
    assert [said[f"{name}_at"] is not None for name in ("in_progress", "finalizing", "completed")] == [True] * 3
    assert [said[f"{name}_at"] for name in ("failed", "expired", "cancelling", "cancelled")] == [None] * 4
    out, err = bench.results(said["output_file_id"]), bench.results(said["error_file_id"])
    assert sorted(r["custom_id"] for r in out) == ["0-a", "2-b", "4-c"]
    assert all(r["response"]["body"]["prompt"] == r["custom_id"][2:] for r in out)
    assert {r["custom_id"]: r["response"]["status_code"] for r in err} == {"1-404": 404, "3-500": 500}
    assert bench.store.get(said["output_file_id"]).purpose == "batch_output"
    assert bench.endpoint.asked.count("500") == runner.MAX_FAILURES
    assert sorted(p.suffix for p in bench.store.batches.iterdir()) == [".json"]
    assert bench.store.room.used == sum(f.bytes for f in bench.store.all())


async def test_what_a_queue_logs_is_not_about_the_request_that_began_it(bench: Bench) -> None:
    told: list[str] = []
    usual = bench.endpoint.ask

    async def ask(url: str, body: bytes) -> Reply:
        record = logging.LogRecord("x", logging.INFO, __file__, 1, "a line runs", (), None)
        told.append(TextFormatter().format(record))
        return await usual(url, body)

    bench.endpoint.ask = ask  # type: ignore[method-assign]
    with about("req-1"):
        await bench.restart()
        batch_id = await bench.create("a")
    await bench.end_of(batch_id)
    assert len(told) == 1 and "req-1" not in told[0]


async def test_only_good_ones_have_no_error_file(bench: Bench) -> None:
    good, bad = await bench.create("a"), await bench.create("400")
    said = (await bench.end_of(good)).said
    assert said["error_file_id"] is None and said["output_file_id"]
    said = (await bench.end_of(bad)).said
    assert said["output_file_id"] is None and said["error_file_id"] and said["status"] == "completed"


async def test_a_wrong_input_fails_at_once(bench: Bench) -> None:
    waits = await bench.create("wait")
    growing = bench.store.receive()
    growing.append(b"{}\nx\n")
    file = bench.store.keep(growing, new_file_id(), "in", "batch", None)
    failed = await bench.end_of((await bench.queue.create(URL, file.id, "1h", 3600, None, None)).id)
    assert (
        failed.said["status"] == "failed"
        and failed.said["failed_at"]
        and not bench.queue.records.get(waits).status.over
    )
    assert [error["line"] for error in failed.said["errors"]["data"]] == [1, 2]
    bench.store.delete(file.id)  # nothing uses it any more
    with pytest.raises(InvalidRequest, match="uses this file"):
        bench.store.delete(bench.queue.records.get(waits).input_file_id)
    bench.endpoint.release.set()
    await bench.end_of(waits)


async def test_one_after_another_and_in_order(bench: Bench) -> None:
    first, second = await bench.create("wait1", "x"), await bench.create("y")
    await bench.until(lambda: bench.queue.records.get(first).completed == 1)
    await bench.until(lambda: bench.queue.records.get(second).status is Status.IN_PROGRESS)
    assert "y" not in bench.endpoint.asked
    bench.endpoint.release.set()
    await bench.end_of(second)
    assert bench.queue.records.get(first).status is Status.COMPLETED
    assert [batch.id for batch in bench.queue.records.all()] == [first, second]


async def test_what_is_refused_for_now_is_asked_again(bench: Bench) -> None:
    bench.endpoint.statuses = {"a": [503, 429, 503, 503, 200], "b": [500, 500, 200]}
    batch = await bench.end_of(await bench.create("a", "b"))
    assert batch.completed == 2 and bench.endpoint.asked.count("a") == 5


@pytest.mark.parametrize("torn", [False, True])
async def test_a_restart_goes_on(bench: Bench, torn: bool) -> None:
    batch_id = await bench.create("a", "404", "wait1", "wait2", "b")
    await bench.until(lambda: bench.endpoint.n_now == 2)
    await bench.close()
    if torn:
        results = bench.folder / "batches" / f"{batch_id}.out"
        results.write_bytes(results.read_bytes() + b'{"custom_id":"2-wa')
    bench.endpoint.asked.clear()
    bench.endpoint.release.set()
    bench.open()
    batch = await bench.end_of(batch_id)
    assert sorted(bench.endpoint.asked) == ["b", "wait1", "wait2"]  # the others have results
    assert batch.said["request_counts"] == {"total": 5, "completed": 4, "failed": 1}
    names = [r["custom_id"] for r in bench.results(batch.output_file_id)]
    assert len(names) == len(set(names)) == 4
    await bench.restart()
    assert bench.queue.records.get(batch_id).said == batch.said and bench.endpoint.asked == []
    assert bench.store.room.used == sum(f.bytes for f in bench.store.all())


async def test_a_restart_while_results_become_files(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it stops between the results' last line and the batch's end, there is one of each."""
    real = bench.store.keep
    n_kept = 0

    def keep(*args: Any) -> Any:
        nonlocal n_kept
        if n_kept == 1:
            raise KeyError("a crash")
        n_kept += 1
        return real(*args)

    monkeypatch.setattr(bench.store, "keep", keep)
    monkeypatch.setattr(queue._log, "error", lambda *_, **__: None)
    n_kept = -1  # the upload
    batch_id = await bench.create("a", "404")
    await bench.until(lambda: n_kept == 1 and bench.queue.records.get(batch_id).status is Status.FINALIZING)
    await bench.until(lambda: not bench.queue._tasks)
    await bench.restart()
    batch = await bench.end_of(batch_id)
    assert batch.said["request_counts"] == {"total": 2, "completed": 1, "failed": 1} and bench.endpoint.asked == []
    assert len(bench.results(batch.output_file_id)) == len(bench.results(batch.error_file_id)) == 1


async def test_the_window(bench: Bench) -> None:
    batch_id = await bench.create("a", "wait", "b", "wait", "c", seconds=10)
    await bench.until(lambda: bench.endpoint.n_now == 2)
    bench.now += 11
    bench.queue.records.news.set()
    batch = await bench.end_of(batch_id)
    assert batch.said["status"] == "expired" and batch.said["expired_at"]
    assert batch.said["request_counts"] == {"total": 5, "completed": 2, "failed": 3}
    errors = bench.results(batch.error_file_id)
    assert sorted(e["custom_id"] for e in errors) == ["1-wait", "3-wait", "4-c"]
    assert all(e["response"] is None and e["error"]["code"] == "batch_expired" for e in errors)
    assert bench.endpoint.n_now == 0


async def test_cancelling(bench: Bench) -> None:
    batch_id, other = await bench.create("a", "wait", "wait", "b"), await bench.create("z")
    await bench.until(lambda: bench.endpoint.n_now == 2)
    assert (await bench.queue.cancel(batch_id)).said["status"] == "cancelling"
    assert (await bench.queue.cancel(batch_id)).said["cancelling_at"]
    batch = await bench.end_of(batch_id)
    assert batch.said["status"] == "cancelled" and batch.said["cancelled_at"]
    assert batch.said["request_counts"] == {"total": 4, "completed": 1, "failed": 0} and bench.endpoint.n_now == 0
    assert [r["custom_id"] for r in bench.results(batch.output_file_id)] == ["0-a"]
    with pytest.raises(InvalidRequest) as refused:
        await bench.queue.cancel(batch_id)
    assert refused.value.code == "batch_over"
    assert (await bench.end_of(other)).status is Status.COMPLETED


async def test_cancelling_one_that_waits_and_over_a_restart(bench: Bench) -> None:
    first, second = await bench.create("wait"), await bench.create("z")
    await bench.until(lambda: bench.queue.records.get(second).status is Status.IN_PROGRESS)
    await bench.queue.cancel(second)
    await bench.restart()
    await bench.until(lambda: bench.endpoint.n_now == 1)
    assert bench.queue.records.get(second).status is Status.CANCELLING
    bench.endpoint.release.set()
    assert (await bench.end_of(second)).status is Status.CANCELLED
    assert "z" not in bench.endpoint.asked and bench.queue.records.get(first).status is Status.COMPLETED


async def test_cancelled_at_birth(bench: Bench) -> None:
    batch_id = await bench.create("a")
    await bench.queue.cancel(batch_id)
    batch = await bench.end_of(batch_id)
    assert batch.status is Status.CANCELLED and bench.endpoint.asked == []


async def test_no_room_for_results_loses_nothing(bench: Bench) -> None:
    file_id = bench.upload("a" * 50, "b" * 50, "c" * 50)
    full = bench.upload("x" * 300)
    bench.store.room.limit = bench.store.room.used + 250
    batch_id = (await bench.queue.create(URL, file_id, "1h", 3600, None, None)).id
    await bench.until(lambda: bool(bench.queue.records.get(batch_id).errors))
    batch = bench.queue.records.get(batch_id)
    assert batch.status is Status.IN_PROGRESS and batch.said["errors"]["data"][0]["code"] == "files_full"
    assert batch.completed < 3
    bench.store.delete(full)
    batch = await bench.end_of(batch_id)
    assert batch.said["status"] == "completed" and batch.said["errors"] is None and batch.completed == 3
    assert sorted(bench.endpoint.asked) == ["a" * 50, "b" * 50, "c" * 50]  # none was run again
    assert len(bench.results(batch.output_file_id)) == 3


async def test_no_room_for_the_batch_itself(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    file_id = bench.upload("a")
    real = module.write_json
    monkeypatch.setattr(module, "write_json", lambda *_: (_ for _ in ()).throw(StorageFull.disk()))
    with pytest.raises(StorageFull):
        await bench.queue.create(URL, file_id, "1h", 3600, None, None)
    assert bench.queue.records.all() == []
    monkeypatch.setattr(module, "write_json", real)
    batch = await bench.queue.create(URL, file_id, "1h", 3600, None, None)
    monkeypatch.setattr(module, "write_json", lambda *_: (_ for _ in ()).throw(StorageFull.disk()))
    await bench.until(lambda: bool(bench.queue.records.get(batch.id).errors))
    assert bench.queue.records.get(batch.id).status is Status.VALIDATING
    monkeypatch.setattr(module, "write_json", real)
    assert (await bench.end_of(batch.id)).status is Status.COMPLETED


async def test_a_damaged_batch_stands_in_nobodys_way(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = await bench.create("wait")
    await bench.until(lambda: bench.endpoint.n_now == 1)
    await bench.close()
    (bench.folder / "files" / bench.queue.records.get(lost).input_file_id).unlink()
    (bench.folder / "batches" / "batch_x.json").write_text("{")
    bench.open()
    assert (await bench.end_of(lost)).said["errors"]["data"][0]["code"] == "file_not_found"
    assert (await bench.end_of(await bench.create("a"))).status is Status.COMPLETED


async def test_the_earliest_that_are_over_are_forgotten(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BATCHES", 2)
    first = await bench.create("a")
    await bench.end_of(first)
    second, third = await bench.create("wait"), await bench.create("wait")
    assert [batch.id for batch in bench.queue.records.all()] == [second, third]
    assert not (bench.folder / "batches" / f"{first}.json").exists()
    with pytest.raises(InvalidRequest) as refused:
        await bench.create("b")
    assert refused.value.status == 429
    bench.endpoint.release.set()
    await bench.end_of(third)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("24h", 86400), ("90m", 5400), ("1s", 1), ("30d", 2592000), ("31d", None), ("0h", None), ("24", None),
        ("h", None), ("-1h", None), ("1.5h", None), ("24H", None), ("٢h", None), ("9999999s", None), ("1h ", None),
    ],
)  # fmt: skip
async def test_windows(text: str, seconds: int | None) -> None:
    assert window_seconds(text) == seconds


async def test_lines_that_fail_to_be_told_end_the_run(one_loop: None) -> None:
    from orcaserve.serving.batches.lines import Line

    async def ask(url: str, body: bytes) -> Reply:
        await asyncio.sleep(0)
        return Reply(200, "x", b"{}")

    async def tell(line: Line, reply: Reply) -> None:
        raise OSError("no")

    lines = [Line(i, str(i), URL, b"{}") for i in range(9)]
    with pytest.raises(OSError, match="no"):
        await runner.run_lines(lines, ask, tell, 3)
