"""Workers that Ray places on the nodes of a cluster: what one process gives, whatever is lost; nothing stays behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from ray_cluster import RayCluster, children
from server_process import Serve

import orcaserve.version
from orcaserve.version import __version__

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'orcaserve[ray]'"),
]
Alive = Callable[[int], bool]
Within = Callable[[float, Callable[[], bool]], bool]
FLOATS = ("--dtype", "float32", "--kv-cache-dtype", "float32", "--n-slots", "8192", "-t", "1")
PROMPTS = ("a", "the sea is", "0123456789 " * 4)
LONG = 900  # tokens
N_STREAMS = 4


@pytest.fixture(scope="module")
def expected(served_odd_model: Path) -> dict[str, str]:
    """Texts of one process."""
    serve = Serve(str(served_odd_model), "--port", "0", *FLOATS)
    try:
        texts = {prompt: serve.text(prompt, max_tokens=40) for prompt in PROMPTS}
        return texts | {long(i): serve.text(long(i), max_tokens=LONG) for i in range(N_STREAMS)}
    finally:
        serve.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def nodes(cluster: RayCluster) -> list[str]:
    return [cluster.call("add", cpus=2), cluster.call("add", cpus=2)]


@pytest.fixture(scope="module")
def serve(cluster: RayCluster, nodes: list[str], served_odd_model: Path) -> Iterator[Serve]:
    """Two stages of two shards, which fill the two nodes."""
    cut = ("-pp", "2", "-tp", "2", "--distributed-executor-backend", "ray", "--ray-address", cluster.address)
    serve = Serve(str(served_odd_model), "--port", "0", "--engine-timeout", "60", *cut, *FLOATS)
    try:
        yield serve
    finally:
        serve.process.kill()


def long(i: int) -> str:
    return f"stream {i}"


def streaming(serve: Serve) -> list[Future[str]]:
    """Streams that have all begun."""
    begun = [threading.Event() for _ in range(N_STREAMS)]

    def read(i: int) -> str:
        text = ""
        body = {"model": serve.model, "prompt": long(i), "temperature": 0, "ignore_eos": True, "max_tokens": LONG}
        with httpx.stream("POST", f"{serve.base}/v1/completions", json={**body, "stream": True}, timeout=240) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    assert "error" not in event, event
                    text += event["choices"][0]["text"]
                    begun[i].set()
        return text

    pool = ThreadPoolExecutor(N_STREAMS)
    streams = [pool.submit(read, i) for i in range(N_STREAMS)]
    pool.shutdown(wait=False)
    assert all(event.wait(240) for event in begun), "".join(serve.log)
    return streams


def check(streams: list[Future[str]], expected: dict[str, str]) -> None:
    assert [stream.result(240) for stream in streams] == [expected[long(i)] for i in range(N_STREAMS)]


def says(serve: Serve, pattern: str) -> None:
    deadline = time.monotonic() + 240
    while not re.search(pattern, "".join(serve.log)):
        assert time.monotonic() < deadline, f"no {pattern!r} in\n{''.join(serve.log)}"
        time.sleep(0.05)


def test_a_cut_over_two_nodes_gives_the_texts_of_one_process(
    cluster: RayCluster, serve: Serve, nodes: list[str], expected: dict[str, str]
) -> None:
    for prompt in PROMPTS:
        assert serve.text(prompt, max_tokens=40) == expected[prompt]
    joined = re.findall(r"Ray node (\w{8}) \(127.0.0.1\) has joined", "".join(serve.log))
    assert sorted(joined) == sorted(nodes * 2)
    for pid in (*cluster.actors, *cluster.workers, serve.engine_pid):
        assert not re.search(rb"[0-9a-f]{64}", Path(f"/proc/{pid}/cmdline").read_bytes()), "the secret"


@pytest.mark.parametrize("what", ["actors", "workers"])
def test_one_is_killed(
    what: str, cluster: RayCluster, serve: Serve, expected: dict[str, str], alive: Alive, within: Within
) -> None:
    before = cluster.actors + cluster.workers
    assert len(before) == 8
    streams = streaming(serve)
    serve.log.clear()
    os.kill(getattr(cluster, what)[0], signal.SIGKILL)
    assert not all(stream.done() for stream in streams)
    check(streams, expected)
    named = {
        "actors": r"the machine Ray node \w{8} \(127.0.0.1\) is gone, which ran s\dr\d",
        "workers": r"worker s\dr\d \(process \d+ on Ray node \w{8} \(127.0.0.1\)\) was ended by SIGKILL",
    }
    says(serve, rf"the engine has failed: {named[what]}")
    assert within(60, lambda: not any(alive(pid) for pid in before)), "those of the lost group"


def test_a_node_is_removed_and_another_takes_its_place(
    cluster: RayCluster, serve: Serve, nodes: list[str], expected: dict[str, str]
) -> None:
    streams = streaming(serve)
    serve.log.clear()
    cluster.call("remove", name=nodes.pop())
    says(serve, r"has no room for 4 workers with 1 CPU each: free are .* of 2 CPUs on .*; waiting")
    assert not any(stream.done() for stream in streams)
    nodes.append(cluster.call("add", cpus=2))
    check(streams, expected)


def test_the_engine_is_killed(
    cluster: RayCluster, serve: Serve, expected: dict[str, str], alive: Alive, within: Within
) -> None:
    before = cluster.actors + cluster.workers
    streams = streaming(serve)
    os.kill(serve.engine_pid, signal.SIGKILL)
    check(streams, expected)
    assert within(60, lambda: not any(alive(pid) for pid in before))


def test_the_end_leaves_nothing(cluster: RayCluster, serve: Serve, alive: Alive, within: Within) -> None:
    before = cluster.actors + cluster.workers
    assert len(before) == 8
    assert serve.stop() == 0
    assert not re.search(r'File ".*/orcaserve/(node|engine|serving|cli|ray)/', "".join(serve.log)), serve.log
    assert within(60, lambda: not any(alive(pid) for pid in before))
    assert within(60, lambda: not cluster.call("left")), cluster.call("left")


def refused(model: Path, *flags: str, code: int = 1) -> str:
    command = [sys.executable, "-m", "orcaserve", "serve", str(model), "--port", "0", *flags]
    command += ["--distributed-executor-backend", "ray", "--log-level", "error"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert ended.returncode == code, ended.stderr
    # Ray tells every driver, in many lines, of nodes that were removed a moment ago.
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("orcaserve: ")]
    return line.removeprefix("orcaserve: ")


def test_what_cannot_be_placed(cluster: RayCluster, nodes: list[str], served_odd_model: Path) -> None:
    flags = ("-pp", "2", "-t", "64", "--placement-timeout", "0.5", "--ray-address", cluster.address)
    line = refused(served_odd_model, *flags)
    begin = f"Ray's cluster at {cluster.address} has no room for 2 workers with 64 CPUs each: free are "
    assert line.startswith(begin)
    assert re.fullmatch(
        r"(\d of \d CPUs on Ray node \w{8} \(127.0.0.1\)(; | ))+\(waited for 0.5 s: --placement-timeout\)",
        line.removeprefix(begin),
    )
    assert all(f"2 of 2 CPUs on Ray node {name}" in line for name in nodes)
    line = refused(served_odd_model, "-pp", "2", "--ray-address", "127.0.0.1:9", "--placement-timeout", "0.5")
    assert line == "--ray-address: no cluster of Ray's answers at 127.0.0.1:9"
    assert not cluster.call("left")


def test_who_is_not_let_in(cluster: RayCluster, served_odd_model: Path, served_model: Path, tmp_path: Path) -> None:
    """A node whose machine has another version, another model, or none: only it has three CPUs."""
    flags = ("-t", "3", "--ray-address", cluster.address)
    other = tmp_path / "version.py"
    other.write_text('__version__ = "999.0"\n')
    here = orcaserve.version.__file__
    node = cluster.call("add_with", cpus=3, path=here, other=str(other))
    if node is None:
        pytest.skip("no right to give a node another view of files")
    line = refused(served_odd_model, *flags)
    assert (
        line == f"Ray node {node} (127.0.0.1): orcaserve is 999.0 here, {__version__} on the server: install the same"
    )
    cluster.call("remove", name=node)
    node = cluster.call("add_with", cpus=3, path=str(served_odd_model), other=str(served_model))
    line = refused(served_odd_model, *flags, code=2)
    assert line.startswith(f"--model: on Ray node {node} (127.0.0.1): is llama, layers 2,")
    assert " but llama, layers 5, " in line
    cluster.call("remove", name=node)
    empty = tmp_path / "empty"
    empty.mkdir()
    node = cluster.call("add_with", cpus=3, path=str(served_odd_model), other=str(empty))
    line = refused(served_odd_model, *flags, code=3)
    assert line.startswith(f"Ray node {node} (127.0.0.1): ")
    assert str(served_odd_model) in line
    cluster.call("remove", name=node)


def test_ray_serve(
    cluster: RayCluster,
    nodes: list[str],
    served_odd_model: Path,
    expected: dict[str, str],
    alive: Alive,
    within: Within,
) -> None:
    """The application answers and streams; there are more replicas while many tokens wait, and fewer afterwards."""
    flags = {name.lstrip("-").replace("-", "_"): value for name, value in zip(FLOATS[::2], FLOATS[1::2], strict=True)
             if name != "-t"}  # fmt: skip
    scaling = {"max_replicas": 2, "tokens_per_replica": 2000, "upscale_delay_s": 0, "downscale_delay_s": 1}
    times = {"metrics_interval_s": 0.5, "look_back_period_s": 2}
    base = cluster.call("serve", args={"model": str(served_odd_model), **flags, **scaling, **times})
    with httpx.Client(base_url=base, timeout=240) as http:
        model = http.get("/v1/models").json()["data"][0]["id"]
        body = {"model": model, "prompt": PROMPTS[1], "temperature": 0, "ignore_eos": True, "max_tokens": 40}
        answer = http.post("/v1/completions", json=body)
        assert answer.json()["choices"][0]["text"] == expected[PROMPTS[1]]
        assert http.post("/v1/completions", json={**body, "max_tokens": -1}).status_code == 400
        body |= {"prompt": long(0), "max_tokens": LONG, "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            parts = list(answer.iter_raw())
        assert len(parts) > 20, "it comes as it is made"
        events = [line[6:] for line in b"".join(parts).decode().splitlines() if line.startswith("data: {")]
        assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == expected[long(0)]
        replica = cluster.processes("ray::ServeReplica")
        assert len(replica) == 1

        enough = threading.Event()

        def load(i: int) -> None:
            while not enough.is_set():
                answer = http.post("/v1/completions", json={**body, "prompt": long(i), "stream": False})
                assert answer.json()["choices"][0]["text"] == expected[long(i)]

        with ThreadPoolExecutor(N_STREAMS) as pool:  # 4 x (8 + 900) tokens
            loads = [pool.submit(load, i) for i in range(N_STREAMS)]
            more = within(180, lambda: cluster.call("replicas") == 2)
            enough.set()
        for one in loads:
            one.result()
    assert more
    assert within(180, lambda: cluster.call("replicas") == 1)
    engines = [
        pid for replica in cluster.processes("ray::ServeReplica") for pid in children(replica, "orcaserve: engine")
    ]
    assert engines
    cluster.call("end_serve")
    assert within(60, lambda: not any(alive(pid) for pid in engines))
    assert within(60, lambda: not cluster.call("left")), cluster.call("left")
