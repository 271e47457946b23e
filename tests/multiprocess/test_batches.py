"""Files and batches of a real server: over restarts, kills and a full disk; and `orcaserve run-batch`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from server_process import Serve
from tiny_disk import TinyDisk

Within = Callable[[float, Callable[[], bool]], bool]
FLAGS = ("--port", "0", "--n-slots", "8192", "-t", "1", "--max-num-seqs", "4")


def requests(n: int, max_tokens: int, model: str = "tiny") -> list[dict[str, Any]]:
    body = {"model": model, "temperature": 0, "max_tokens": max_tokens, "ignore_eos": True}
    return [
        {"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions", "body": {**body, "prompt": f"line {i}"}}
        for i in range(n)
    ]


def written(path: Path, items: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def create(serve: Serve, path: Path) -> str:
    with openai.OpenAI(base_url=f"{serve.base}/v1", api_key="x") as client, open(path, "rb") as file:
        uploaded = client.files.create(file=file, purpose="batch")
        batch = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/completions", completion_window="24h")
    return batch.id


def look(serve: Serve, batch_id: str) -> dict[str, Any]:
    said: dict[str, Any] = serve.http.get(f"/v1/batches/{batch_id}").json()
    return said


def texts(serve: Serve, batch: dict[str, Any]) -> dict[str, str]:
    content = serve.http.get(f"/v1/files/{batch['output_file_id']}/content").text
    results = [json.loads(line) for line in content.splitlines()]
    assert len({result["custom_id"] for result in results}) == len(results)
    return {r["custom_id"]: r["response"]["body"]["choices"][0]["text"] for r in results}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_batch_over_a_restart(served_model: Path, tmp_path: Path, within: Within, how: int) -> None:
    flags = (str(served_model), *FLAGS, "--files-dir", str(tmp_path / "files"))
    n = 24
    serve = Serve(*flags)
    expected = {f"r{i}": serve.text(f"line {i}", max_tokens=120) for i in range(n)}
    batch_id = create(serve, written(tmp_path / "in.jsonl", requests(n, 120)))
    assert within(30, lambda: 3 <= look(serve, batch_id)["request_counts"]["completed"] < n)
    if how == signal.SIGTERM:
        start = time.monotonic()
        assert serve.stop() == 0, "lines of batches are not cut: they run again"
        assert time.monotonic() - start < 5
    else:
        serve.process.send_signal(how)
        serve.process.wait(30)
        serve.stop()
    serve = Serve(*flags)
    assert within(60, lambda: look(serve, batch_id)["status"] == "completed")
    batch = look(serve, batch_id)
    assert batch["request_counts"] == {"total": n, "completed": n, "failed": 0}
    assert texts(serve, batch) == expected
    assert serve.stop() == 0


def test_one_folder_is_of_one_server(served_model: Path, tmp_path: Path) -> None:
    flags = (str(served_model), *FLAGS, "--files-dir", str(tmp_path))
    serve = Serve(*flags)
    second = subprocess.run(
        [sys.executable, "-m", "orcaserve", "serve", *flags], capture_output=True, text=True, timeout=120, check=False
    )
    assert second.returncode == 2 and "--files-dir" in second.stderr and "another server" in second.stderr
    assert "Traceback" not in second.stderr
    assert serve.http.get("/v1/files").status_code == 200 and serve.stop() == 0


def test_the_default_folder_is_made_when_it_is_needed(
    served_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    serve = Serve(str(served_model), *FLAGS, "--served-model-name", "a/b c")
    assert not (tmp_path / "state").exists()
    assert serve.http.get("/v1/files").json()["data"] == []
    assert (tmp_path / "state" / "orcaserve" / "files" / "a%2Fb%20c" / "files").is_dir()
    second = Serve(str(served_model), *FLAGS, "--served-model-name", "a/b c")  # serves, only without files
    assert second.http.get("/v1/files").status_code == 503 and second.text(max_tokens=2)
    assert second.stop() == 0 and serve.stop() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="uses mount namespaces")
def test_a_full_disk_loses_nothing(served_model: Path, tmp_path: Path, folder: Path, within: Within) -> None:
    try:
        disk = TinyDisk(folder)
    except OSError as error:
        pytest.skip(f"a tmpfs of our own cannot be mounted here: {error}")
    serve = Serve(str(served_model), *FLAGS, "--files-dir", str(folder / "files"), inside=disk.inside)
    disk.of(serve.process.pid)
    expected = {f"r{i}": serve.text(f"line {i}", max_tokens=60) for i in range(12)}
    batch_id = create(serve, written(tmp_path / "in.jsonl", requests(12, 60)))
    disk.fill(leave_names=True)
    big = serve.http.post("/v1/files", files={"file": ("a", b"x" * 100_000)}, data={"purpose": "batch"})
    assert big.status_code == 507 and big.json()["error"]["code"] == "disk_full"
    assert within(
        30, lambda: look(serve, batch_id)["errors"] is not None or look(serve, batch_id)["status"] == "completed"
    )
    waiting = look(serve, batch_id)
    if waiting["status"] != "completed":  # it may have been quicker than the disk was full
        assert waiting["errors"]["data"][0]["code"] == "disk_full"
    assert serve.text("line 0", max_tokens=60) == expected["r0"]  # others are served
    disk.free()
    assert within(60, lambda: look(serve, batch_id)["status"] == "completed")
    assert texts(serve, look(serve, batch_id)) == expected
    assert serve.stop() == 0


def run_batch(*args: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orcaserve", "run-batch", *args, "-t", "1", "--n-slots", "8192"],
        capture_output=True, text=True, timeout=240, check=False, **settings,
    )  # fmt: skip


def test_run_batch(served_model: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    written(source, requests(6, 20))
    files = ("-i", str(source), "-o", str(target), str(served_model))
    done = run_batch(*files)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and "6 results" in done.stderr and "Traceback" not in done.stderr
    results = [json.loads(line) for line in target.read_text().splitlines()]
    assert {r["custom_id"] for r in results} == {f"r{i}" for i in range(6)}
    assert all(r["response"]["body"]["usage"]["completion_tokens"] == 20 for r in results)
    again = run_batch(*files)
    assert again.returncode == 2 and "--resume" in again.stderr
    assert run_batch(*files, "--resume").returncode == 0  # there is nothing left to do
    written(source, [*requests(6, 20), {**requests(1, 20, model="nope")[0], "custom_id": "other"}])
    more = run_batch(*files, "--resume")
    assert more.returncode == 1 and "1 of them with another status" in more.stderr
    results = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(results) == 7 and results[-1]["response"]["status_code"] == 404


def test_run_batch_refuses_what_is_no_input(served_model: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    files = ("-i", str(source), "-o", str(target), str(served_model))
    assert run_batch(*files).returncode == 2
    source.write_text('{"custom_id":"a"}\nx\n')
    done = run_batch(*files)
    assert done.returncode == 2 and "line 1: " in done.stderr and "line 2: " in done.stderr and not target.exists()


def test_run_batch_keeps_what_there_is(served_model: Path, tmp_path: Path, within: Within) -> None:
    """Interrupted, it ends soon, with whole lines; --resume adds the others and none twice."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    written(source, requests(30, 200))
    flags = ["-i", str(source), "-o", str(target), str(served_model), "-t", "1", "--n-slots", "8192", "-np", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "orcaserve", "run-batch", *flags], stderr=subprocess.PIPE, text=True
    )
    assert within(120, lambda: target.exists() and target.stat().st_size > 0)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume" in said and "Traceback" not in said, said
    kept = [json.loads(line) for line in target.read_text().splitlines()]
    assert 0 < len(kept) < 30
    with open(target, "ab") as file:
        file.write(b'{"custom_id":"r29"')  # as a kill may leave it
    done = run_batch(*flags[:5], "--resume")
    assert done.returncode == 0, done.stderr
    results = [json.loads(line)["custom_id"] for line in target.read_text().splitlines()]
    assert sorted(results) == sorted(f"r{i}" for i in range(30))
    assert os.stat(target).st_mode & 0o077 == 0
