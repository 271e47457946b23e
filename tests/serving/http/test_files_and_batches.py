"""/v1/files and /v1/batches through the real client: uploads, pages, results, errors; nobody else is harmed."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from orcaserve.config import ApiKey


def lines_of(*bodies: dict[str, Any], url: str = "/v1/completions") -> bytes:
    items = [{"custom_id": f"r{i}", "method": "POST", "url": url, "body": body} for i, body in enumerate(bodies)]
    return b"".join(json.dumps(item).encode() + b"\n" for item in items)


UPLOAD = b"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary=b\r\n"
GOOD = {"model": "tiny", "prompt": "the", "temperature": 0, "max_tokens": 6}


@pytest.fixture
def client(keeping: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{keeping.base}/v1", api_key="x", max_retries=0) as client:
        yield client
    keeping.check_well()
    keeping.engine.pause = False
    for batch in keeping.app.batches.records.all() if keeping.app.batches else ():
        end_of(client_of(keeping), batch.id)


def client_of(keeping: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{keeping.base}/v1", api_key="x", max_retries=0)


def end_of(client: openai.OpenAI, batch_id: str) -> Any:
    deadline = time.monotonic() + 20
    while (batch := client.batches.retrieve(batch_id)).status in (
        "validating",
        "in_progress",
        "finalizing",
        "cancelling",
    ):
        assert time.monotonic() < deadline, batch
        time.sleep(0.01)
    return batch


def run(client: openai.OpenAI, content: bytes, endpoint: Any = "/v1/completions", **fields: Any) -> Any:
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **fields)


def results(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def test_a_file(client: openai.OpenAI) -> None:
    content = lines_of(GOOD) * 3
    file = client.files.create(file=("ü.jsonl", content), purpose="batch")
    assert file.bytes == len(content) and file.filename == "ü.jsonl" and file.purpose == "batch"
    assert file.status == "processed" and file.object == "file" and file.id.startswith("file-")
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == content
    assert client.files.wait_for_processing(file.id) == file
    assert client.files.delete(file.id).deleted
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError) as gone:
            call(file.id)
        assert gone.value.code == "file_not_found" and gone.value.param == "id"


def test_contents_over_one_connection(keeping: Any, client: openai.OpenAI) -> None:
    """The next request may come with the last byte: the answer must be complete by then."""
    for size in (0, 1, 65536, 65537, 200_000):
        content = bytes(i % 251 for i in range(size))
        file = client.files.create(file=("a", content), purpose="batch")
        for _ in range(20):
            assert keeping.http.get(f"/v1/files/{file.id}/content").content == content
        client.files.delete(file.id)


def test_files_that_expire(client: openai.OpenAI) -> None:
    after: Any = {"anchor": "created_at", "seconds": 3600}
    file = client.files.create(file=("a", b"{}"), purpose="batch", expires_after=after)
    assert file.expires_at == file.created_at + 3600
    for wrong in ({"anchor": "created_at", "seconds": 5}, {"anchor": "now", "seconds": 3600}, {"anchor": "created_at"}):
        with pytest.raises(openai.BadRequestError) as refused:
            client.files.create(file=("a", b"{}"), purpose="batch", expires_after=wrong)  # type: ignore[arg-type]
        assert refused.value.param == "expires_after"
    client.files.delete(file.id)


def test_pages_of_files(client: openai.OpenAI) -> None:
    for file in client.files.list():
        client.files.delete(file.id)
    ids = [client.files.create(file=(f"{i}", b"x"), purpose="batch").id for i in range(5)]
    first = client.files.list(limit=2)
    assert [f.id for f in first.data] == ids[:-3:-1] and first.has_more
    assert [f.id for f in client.files.list(limit=2)] == ids[::-1]  # the client walks through the pages
    assert [f.id for f in client.files.list(order="asc", limit=3, after=ids[0]).data] == ids[1:4]
    assert client.files.list(purpose="batch_output").data == []
    for wrong in ({"limit": 0}, {"limit": 10_001}, {"order": "up"}, {"after": "file-x"}):
        with pytest.raises(openai.BadRequestError) as refused:
            client.files.list(**wrong)  # type: ignore[arg-type]
        assert refused.value.param == next(iter(wrong))
    for file_id in ids:
        client.files.delete(file_id)


@pytest.mark.parametrize(
    ("files", "data", "param"),
    [
        ({"file": ("a", b"x")}, {}, "purpose"),
        ({"file": ("a", b"x")}, {"purpose": "fine-tune"}, "purpose"),
        ({"other": ("a", b"x")}, {"purpose": "batch"}, "file"),
        ({"file": (None, b"x")}, {"purpose": "batch"}, "file"),
        ({"file": ("x" * 256, b"x")}, {"purpose": "batch"}, "file"),
        ({"file": ("a", b"x")}, {"purpose": ["batch", "batch"]}, None),
        ([("file", ("a", b"x")), ("file", ("b", b"x"))], {"purpose": "batch"}, None),
        ({"file": ("a", b"x")}, {"purpose": "x" * 2000}, None),
    ],
)
def test_forms_that_are_refused(keeping: Any, client: openai.OpenAI, files: Any, data: Any, param: str | None) -> None:
    used = keeping.app.require_files().room.used
    answer = keeping.http.post("/v1/files", files=files, data=data)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert keeping.app.files.room.used == used
    assert not list(keeping.app.files._folder.joinpath("incoming").iterdir())


def test_no_form(keeping: Any) -> None:
    assert keeping.post("/v1/files", b"{}").status_code == 415
    answer = keeping.http.post("/v1/files", content=b"x", headers={"content-type": "multipart/form-data; boundary=b"})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_form"


def test_uploads_that_end_early_leave_nothing(keeping: Any) -> None:
    head = UPLOAD + b"content-length: 900000"
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    used = keeping.app.require_files().room.used
    incoming = keeping.app.files._folder / "incoming"
    with keeping.connection() as raw:
        raw.sendall(head + b"\r\n\r\n" + part + b"x" * 100_000)
        keeping.wait_until(lambda: any(incoming.iterdir()))
    keeping.wait_until(lambda: not any(incoming.iterdir()))
    assert keeping.app.files.room.used == used and keeping.app.n_uploads == 0


def test_room_for_files(keeping: Any, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(openai.APIStatusError) as full:
        client.files.create(file=("a", b"x" * (2**20 + 1)), purpose="batch")
    assert full.value.status_code == 413 and full.value.code == "files_full"
    monkeypatch.setattr("orcaserve.serving.files.api.MAX_FILE_BYTES", 1000)
    with pytest.raises(openai.APIStatusError) as large:
        client.files.create(file=("a", b"x" * 1001), purpose="batch")
    assert large.value.status_code == 413 and large.value.code == "file_too_large" and "1000" in large.value.message
    monkeypatch.setattr("orcaserve.serving.files.api.MAX_FORM_BYTES", 2000)
    with pytest.raises(openai.APIStatusError) as large:
        client.files.create(file=("a", b"x" * 5000), purpose="batch")
    assert large.value.status_code == 413
    monkeypatch.setattr("orcaserve.serving.files.api.MAX_UPLOADS", 0)
    with pytest.raises(openai.APIStatusError) as busy:
        client.files.create(file=("a", b"x"), purpose="batch")
    assert busy.value.status_code == 503


def test_slow_uploads(keeping: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orcaserve.serving.files.api.UPLOAD_SECONDS", 0.2)
    monkeypatch.setattr("orcaserve.serving.http.DRAIN_SECONDS", 0.1)
    head = UPLOAD + b"content-length: 900\r\n\r\n"
    assert b" 408 " in keeping.send_raw(head + b"--b")


def test_without_a_folder(server: Any) -> None:
    for method, path in (("GET", "/v1/files"), ("GET", "/v1/batches"), ("GET", "/v1/files/x/content")):
        answer = server.http.request(method, path)
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "files_disabled"
    assert server.post("/v1/batches", {"input_file_id": "x"}).status_code == 404


def test_a_folder_of_another_server(other_server: Any, tmp_path: Any) -> None:
    first, second = other_server(files_dir=tmp_path / "f"), other_server(files_dir=tmp_path / "f")
    assert first.http.get("/v1/files").status_code == 200
    answer = second.http.get("/v1/files")
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "files_unavailable"
    assert str(tmp_path) not in answer.text


def test_a_batch(keeping: Any, client: openai.OpenAI) -> None:
    bad = {**GOOD, "temperature": -1}
    metadata = {"job": "7"}
    lines = lines_of(GOOD, bad, {**GOOD, "model": "nope"}, {**GOOD, "prompt": ["the", "fox"]})
    batch = run(client, lines, metadata=metadata)
    assert batch.object == "batch" and batch.endpoint == "/v1/completions" and batch.completion_window == "24h"
    assert batch.expires_at == batch.created_at + 86400 and batch.metadata == metadata and batch.errors is None
    batch = end_of(client, batch.id)
    assert batch.status == "completed" and batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (4, 2, 2)
    out = {result["custom_id"]: result for result in results(client, batch.output_file_id)}
    err = {result["custom_id"]: result for result in results(client, batch.error_file_id)}
    assert set(out) == {"r0", "r3"} and set(err) == {"r1", "r2"}
    answer = out["r0"]["response"]
    assert answer["status_code"] == 200 and answer["body"]["choices"][0]["text"] == keeping.known_text
    assert answer["request_id"] == answer["body"]["id"] and out["r0"]["id"].startswith("batch_req_")
    assert out["r0"]["error"] is None and err["r1"]["error"] is None
    assert err["r1"]["response"]["body"]["error"]["param"] == "temperature"
    assert err["r2"]["response"]["status_code"] == 404
    assert client.files.retrieve(batch.output_file_id).purpose == "batch_output"
    online = keeping.post("/v1/completions", bad)
    assert online.json() == err["r1"]["response"]["body"]


def test_a_batch_of_conversations(client: openai.OpenAI) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    batch = end_of(client, run(client, lines_of(body, url="/v1/chat/completions"), "/v1/chat/completions").id)
    [result] = results(client, batch.output_file_id)
    assert result["response"]["body"]["object"] == "chat.completion"


def test_a_wrong_input(client: openai.OpenAI) -> None:
    batch = end_of(client, run(client, b'{"custom_id":"a"}\n\n[]\n' + lines_of({**GOOD, "stream": True})).id)
    assert batch.status == "failed" and batch.errors is not None and batch.errors.data is not None
    assert [error.line for error in batch.errors.data] == [1, 3, 4]
    assert batch.output_file_id is None and batch.failed_at is not None


def test_many_lines_beside_online_requests(keeping: Any, client: openai.OpenAI) -> None:
    batch = run(client, lines_of(*[{**GOOD, "max_tokens": 50}] * 40))
    seen = []
    for _ in range(20):
        assert keeping.complete(max_tokens=6).json()["choices"][0]["text"] == keeping.known_text
        seen.append(keeping.engine.n_open)
    assert max(seen) <= 8  # max_bs
    batch = end_of(client, batch.id)
    assert batch.request_counts is not None and batch.request_counts.completed == 40


def test_cancelling(keeping: Any, client: openai.OpenAI) -> None:
    keeping.engine.seconds_per_token = 0.01
    batch = run(client, lines_of(*[{**GOOD, "max_tokens": 100}] * 50))
    keeping.wait_until(lambda: keeping.engine.n_open == 8)  # max_bs
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = end_of(client, batch.id)
    assert batch.status == "cancelled" and batch.cancelled_at is not None
    keeping.engine.seconds_per_token = 0.001
    assert keeping.wait_until(lambda: keeping.engine.n_open == 0) < 1
    with pytest.raises(openai.BadRequestError) as over:
        client.batches.cancel(batch.id)
    assert over.value.code == "batch_over"


def test_pages_of_batches(client: openai.OpenAI) -> None:
    ids = [run(client, lines_of(GOOD)).id for _ in range(3)]
    assert [batch.id for batch in client.batches.list(limit=2).data] == ids[:0:-1]
    assert [batch.id for batch in client.batches.list(limit=1)][:3] == ids[::-1]
    for wrong in ({"limit": 101}, {"after": "batch_x"}):
        with pytest.raises(openai.BadRequestError):
            client.batches.list(**wrong)  # type: ignore[arg-type]
    with pytest.raises(openai.NotFoundError) as unknown:
        client.batches.retrieve("batch_x")
    assert unknown.value.code == "batch_not_found"
    with pytest.raises(openai.NotFoundError):
        client.batches.cancel("batch_x")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_file_id": "file-x"}, "input_file_id"),
        ({"input_file_id": 5}, "input_file_id"),
        ({"endpoint": "/v1/audio"}, "endpoint"),
        ({"endpoint": []}, "endpoint"),
        ({"completion_window": "1w"}, "completion_window"),
        ({"completion_window": 24}, "completion_window"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {"x" * 65: "a"}}, "metadata"),
        ({"metadata": {str(i): "a" for i in range(17)}}, "metadata"),
        ({"output_expires_after": {"seconds": 3600}}, "output_expires_after"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": True}}, "output_expires_after"),
    ],
)
def test_batches_that_are_refused(keeping: Any, client: openai.OpenAI, fields: Any, param: str) -> None:
    file = client.files.create(file=("in", lines_of(GOOD)), purpose="batch")
    body = {"input_file_id": file.id, "endpoint": "/v1/completions", "completion_window": "24h", **fields}
    answer = keeping.post("/v1/batches", body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param
    client.files.delete(file.id)


def test_a_result_is_no_input(client: openai.OpenAI) -> None:
    batch = end_of(client, run(client, lines_of(GOOD)).id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.batches.create(input_file_id=batch.output_file_id, endpoint="/v1/completions", completion_window="24h")
    assert refused.value.param == "input_file_id"


def test_ignored_and_strict(keeping: Any, other_server: Any, tmp_path: Any) -> None:
    form = {"files": {"file": ("a", b"x")}, "data": {"purpose": "batch", "odd": "1"}}
    answer = keeping.http.post("/v1/files", **form)
    assert answer.status_code == 200 and answer.headers["x-orcaserve-ignored-fields"] == "odd"
    assert keeping.http.get("/v1/files?odd=1").headers["x-orcaserve-ignored-fields"] == "odd"
    strict = other_server(strict=True, files_dir=tmp_path)
    assert strict.http.post("/v1/files", **form).json()["error"]["code"] == "unknown_field"
    assert strict.http.get("/v1/files?odd=1").status_code == 400
    assert strict.http.get("/v1/files?purpose=batch").status_code == 200
    assert strict.http.get("/v1/files").json()["data"] == []  # nothing was kept of the refused form


@pytest.mark.parametrize("query", ["limit=1&limit=2", "a=%ff", "&".join(f"a{i}=1" for i in range(40))])
def test_queries_that_are_refused(keeping: Any, query: str) -> None:
    answer = keeping.http.get(f"/v1/files?{query}")
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_query"


def test_a_body_behind_a_get(keeping: Any) -> None:
    """What is read of it is nothing; the connection closes, and the answer is whole."""
    file = keeping.http.post("/v1/files", files={"file": ("a", io.BytesIO(b"abc"))}, data={"purpose": "batch"}).json()
    answer: httpx.Response = keeping.http.request("GET", f"/v1/files/{file['id']}/content", content=b"x" * 10)
    assert answer.content == b"abc" and answer.headers["connection"] == "close"
    assert keeping.http.head(f"/v1/files/{file['id']}/content").headers["content-length"] == "3"


def test_everything_needs_the_key(other_server: Any, tmp_path: Any) -> None:
    """Lines of batches are asked inside, where nobody has a key to show."""
    server = other_server(api_keys=(ApiKey("own", "s3cret"),), files_dir=tmp_path)
    with openai.OpenAI(base_url=f"{server.base}/v1", api_key="s3cret", max_retries=0) as client:
        batch = end_of(client, run(client, lines_of(GOOD)).id)
        assert batch.request_counts is not None and batch.request_counts.completed == 1
    assert server.http.post("/v1/files", files={"file": ("a", b"x")}, data={"purpose": "batch"}).status_code == 401
