"""A model cut over real processes gives what one gives, what cannot be cut is refused, and nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import grpc
import pytest
from engine_runs import Running, settings, some_requests
from server_process import workers

from orcaserve.config import EngineConfig, KVConfig, SchedulerConfig
from orcaserve.core import ConfigError, EngineError, FinishReason, ModelNotFound, Progress, Request
from orcaserve.core import SamplingParams as Params
from orcaserve.native.convert import convert

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]

Alive = Callable[[int], bool]
Within = Callable[[float, Callable[[], bool]], bool]
GRID = [(p, t) for p, t in product((1, 2, 3, 4), (1, 2, 3)) if p * t > 1]


@pytest.fixture(scope="module")
def expected(odd_model: Path) -> dict[int, list[int]]:
    with Running(settings(odd_model)) as one:
        return one.run(some_requests())


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is left in the directory for temporary files, which is one of the test's own."""
    own = tempfile.mkdtemp()
    monkeypatch.setattr(tempfile, "tempdir", own)
    monkeypatch.setenv("TMPDIR", own)
    yield
    os.rmdir(own)


def has_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def network_sockets(pid: int) -> list[str]:
    """Addresses in the kernel's table where this process listens on TCP, in its own notation."""
    own = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()}
    tables = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for lines in tables for line in lines]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(("p", "t"), GRID)
def test_cut_into_any_parts_it_gives_the_tokens_of_one_process(
    p: int, t: int, odd_model: Path, expected: dict[int, list[int]], alive: Alive
) -> None:
    with Running(settings(odd_model, p, t)) as engine:
        pids = workers(os.getpid())
        assert set(pids) == {f"s{stage}r{shard}" for stage in range(p) for shard in range(t)}
        assert engine.host.facts.n_workers == p
        assert engine.run(some_requests()) == expected
    assert not any(alive(pid) for pid in pids.values())


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(
    "scheduler",
    [
        SchedulerConfig(6, "request-level", microbatch_size=2),
        SchedulerConfig(6, "request-level", microbatch_size=4, first_iteration="whole"),
        SchedulerConfig(6, "cellular"),
        SchedulerConfig(6, "overcommit"),
    ],
    ids=str,
)
def test_other_policies_over_two_stages_of_two_shards(
    scheduler: SchedulerConfig, odd_model: Path, expected: dict[int, list[int]]
) -> None:
    """Initiations in pieces, requests computed on though they have ended, and preempted ones, at every worker."""
    config = settings(odd_model, 2, 2, n_slots=256)
    config = replace(config, model=replace(config.model, max_model_len=64), scheduler=scheduler)
    with Running(config) as engine:
        assert engine.run(some_requests()) == expected


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(("p", "t"), [(2, 1), (1, 2), (1, 3)])
def test_the_default_model(p: int, t: int, default_model: Path) -> None:
    requests = [
        Request(0, list(range(1000, 1030)), Params(max_tokens=12, temperature=0)),
        Request(1, [504, 3575, 314], Params(max_tokens=12, temperature=0)),
        Request(2, [28, 1743], Params(max_tokens=12, temperature=0.8, repetition_penalty=1.1), seed=5),
    ]
    with Running(settings(default_model)) as one:
        expected = one.run([replace(request, output=[]) for request in requests])
    with Running(settings(default_model, p, t)) as engine:
        assert engine.run(requests) == expected


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(("p", "t"), [(2, 1), (2, 2), (1, 3)])
def test_integers_and_converted_models(p: int, t: int, outlier_model: Path, tmp_path: Path) -> None:
    """Exact inputs are chosen by all workers together, or are in the converted file: the same tokens. Stages alone give
    those of one process."""

    def integers(model: Path, p: int = 1, t: int = 1) -> EngineConfig:
        config = settings(model, p, t)
        return replace(config, model=replace(config.model, dtype="auto", quantization="int8"), kv=KVConfig(n_slots=160))

    convert(outlier_model, tmp_path / "converted", "auto", "int8", n_threads=1)
    with Running(integers(outlier_model, p, t)) as engine:
        tokens = engine.run(some_requests())
    with Running(integers(tmp_path / "converted", p, t)) as engine:
        assert engine.run(some_requests()) == tokens
    if t == 1:
        with Running(integers(outlier_model)) as one:
            assert one.run(some_requests()) == tokens


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(("p", "t"), [(1, 2), (2, 2)])
def test_long_prompts_are_summed_in_blocks_of_rows(p: int, t: int, odd_model: Path) -> None:
    """Sums of different sizes follow each other in an iteration, each announced by the one before. A block has 512
    rows: the first two prompts fill two together, the next two leave one row for a third."""
    lengths = (500, 524, 513, 512, 2500, 7)
    requests = [
        Request(i, [(3 + 7 * j + i) % 251 for j in range(n)], Params(max_tokens=6, temperature=0))
        for i, n in enumerate(lengths)
    ]
    with Running(settings(odd_model, n_slots=8192)) as one:
        expected = one.run([replace(request, output=[]) for request in requests])
    with Running(settings(odd_model, p, t, n_slots=8192)) as engine:
        assert engine.run(requests) == expected


@pytest.mark.usefixtures("folders")
def test_layers_as_asked_for_and_a_timeline(odd_model: Path, expected: dict[int, list[int]], tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    config = settings(odd_model, 2, layer_split=(4, 1), timeline=path)
    with Running(config) as engine:
        for pid in workers(os.getpid()).values():
            assert network_sockets(pid) == [], "on one machine nobody listens"
        assert engine.run(some_requests()) == expected
    trace = json.loads(path.read_text())
    work = [event for event in trace["traceEvents"] if event.get("cat") == "compute"]
    iterations = {event["args"]["iteration"] for event in work}
    assert iterations == set(range(1, max(iterations) + 1))
    assert {event["tid"] for event in work} == {0, 1}
    by_stage = [{e["args"]["iteration"]: e for e in work if e["tid"] == stage} for stage in (0, 1)]
    for number, first in by_stage[0].items():
        assert by_stage[1][number]["ts"] >= first["ts"] + first["dur"], "a stage computes after the one before it"
    forwards = {e["args"]["iteration"]: e for e in trace["traceEvents"] if e.get("cat") == "forward" and e["tid"] == 0}
    assert all(forwards[number]["ts"] <= event["ts"] for number, event in by_stage[0].items())
    assert all(0 <= share < 1 for share in trace["otherData"]["idle_shares"].values())
    picture = ElementTree.fromstring(path.with_suffix(".svg").read_text())
    assert picture.tag.endswith("svg")


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize("victim", ["s0r0", "s1r1"])
def test_a_worker_that_is_killed_ends_the_engine_by_name(victim: str, odd_model: Path, alive: Alive) -> None:
    with Running(settings(odd_model, 2, 2, n_slots=4096)) as engine:
        pids = workers(os.getpid())
        engine.host.submit([Request(1, [1, 2, 3], Params(max_tokens=1000, temperature=0))])
        engine.news.get(timeout=60)
        started = time.monotonic()
        os.kill(pids[victim], signal.SIGKILL)
        assert engine.until_failure() == f"worker {victim} (process {pids[victim]}) was ended by SIGKILL"
        assert time.monotonic() - started < 2
        with pytest.raises(EngineError):
            engine.host.submit([Request(2, [1], Params())])
    assert not any(alive(pid) for pid in pids.values())


@pytest.mark.usefixtures("folders")
def test_a_worker_that_is_stopped_is_taken_for_lost(odd_model: Path, alive: Alive) -> None:
    with Running(settings(odd_model, 2, worker_timeout=2.0)) as engine:
        pids = workers(os.getpid())
        os.kill(pids["s1r0"], signal.SIGSTOP)
        started = time.monotonic()
        assert engine.until_failure() == f"worker s1r0 (process {pids['s1r0']}) has not answered for 2 s"
        assert time.monotonic() - started < 6
    assert not any(alive(pid) for pid in pids.values())


@pytest.mark.usefixtures("folders")
def test_an_idle_engine_is_not_taken_for_lost(odd_model: Path, expected: dict[int, list[int]]) -> None:
    """Pings without data for longer than gRPC's own patience with them."""
    with Running(settings(odd_model, 2, worker_timeout=1.0)) as engine:
        time.sleep(4)
        assert engine.run(some_requests()) == expected


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(
    ("parallel", "words"),
    [
        ({"p": 6}, r"^--pipeline-parallel-size: must be at most 5: the model has so many layers$"),
        ({"t": 5}, r"^--tensor-parallel-size: must be at most 4: the model has 4 key/value heads"),
        ({"p": 2, "layer_split": (2, 2)}, r"^--layer-split: adds up to 4 layers, and the model has 5$"),
    ],
)
def test_impossible_cuts_are_refused_before_anything_starts(
    parallel: dict[str, object], words: str, odd_model: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        Running(settings(odd_model, **parallel))  # type: ignore[arg-type]
    assert workers(os.getpid()) == {}


def test_other_settings_that_do_not_go_with_workers(odd_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        Running(settings(tmp_path / "none", 2))


@pytest.mark.usefixtures("folders")
def test_what_a_worker_finds_wrong_is_what_the_user_reads(odd_model: Path) -> None:
    config = settings(odd_model, 2)
    with pytest.raises(ConfigError, match=r"^--n-slots: .* need .* are free"):
        Running(replace(config, kv=replace(config.kv, n_slots=2**40)))
    assert workers(os.getpid()) == {}
    with pytest.raises(ConfigError, match=r"^page_size: must be a multiple of 16"):
        Running(replace(config, kv=replace(config.kv, page_size=8)))
    assert workers(os.getpid()) == {}


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize("n_good", [1, 5])
def test_a_request_that_cannot_run_ends_alone(n_good: int, odd_model: Path) -> None:
    """Its rows are missing at every stage alike, be it the whole of its batch (n_good 1) or a part of it."""

    def good(first_id: int) -> list[Request]:
        params = Params(max_tokens=6, temperature=0)
        return [Request(first_id + i, list(range(i + 1, 2 * i + 4)), params) for i in range(n_good)]

    with Running(settings(odd_model, 3)) as engine:
        engine.host._check = lambda request: None  # type: ignore[method-assign]  # the door that would refuse it
        expected = list(engine.run(good(1)).values())
        company = [Request(50, [1, 99_999, 3], Params(max_tokens=4)), *good(51)]
        tokens: dict[int, list[int]] = {request.id: [] for request in company}
        ends: dict[int, Progress] = {}
        engine.host.submit(company)
        while len(ends) < len(company):
            report = engine.news.get(timeout=60)
            assert not isinstance(report, str), report
            for news in report.progress:
                if news.token is not None:
                    tokens[news.request_id].append(news.token)
                if news.finish_reason is not None:
                    ends[news.request_id] = news
    assert ends[50].finish_reason is FinishReason.ERROR and "outside 0..250" in str(ends[50].error)
    assert [tokens[request.id] for request in company[1:]] == expected


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-pp", "31"], "orcaserve: --pipeline-parallel-size: must be at most 30: the model has so many layers"),
        (["-tp", "4"], "orcaserve: --tensor-parallel-size: must be at most 3: the model has 3 key/value heads"),
        (["--layer-split", "8,8"], "orcaserve: --layer-split: adds up to 16 layers, and the model has 30"),
        (["-pp", "2", "--layer-split", "30"], "orcaserve: --layer-split: names 1 stages, --pipeline-parallel-size 2"),
    ],
)
def test_the_user_reads_one_line(flags: list[str], words: str, default_model: Path) -> None:
    command = [sys.executable, "-m", "orcaserve", "generate", "--model", str(default_model), "--prompt", "x", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.startswith(words) and ended.stderr.count("\n") == 1


async def test_the_endpoint_hears_of_a_lost_worker(odd_model: Path, alive: Alive, within: Within) -> None:
    """Through all processes: endpoint (this one), engine, workers."""
    from orcaserve.core.errors import ENGINE_LOST
    from orcaserve.serving.launcher import EngineProcess

    engine = EngineProcess(settings(odd_model, 2, n_slots=4096))
    engine.start()
    client = await engine.connect(60)
    pids = workers(engine.pid)
    assert set(pids) == {"s0r0", "s1r0"} and client.facts.n_workers == 2
    assert not any(has_torch(pid) for pid in (engine.pid, *pids.values())), "on one machine nobody needs it"
    stream = client.submit(Request(1, [3, 4], Params(max_tokens=2000, temperature=0)))
    await anext(stream)
    os.kill(pids["s0r0"], signal.SIGKILL)
    end = [news async for some in stream for news in some][-1]
    assert end == Progress(1, None, FinishReason.ERROR, ENGINE_LOST)
    assert await engine.wait() == 1
    await asyncio.wait_for(client.closed.wait(), 5)
    assert "worker s0r0" in str(client.reason) and "SIGKILL" in str(client.reason)
    assert within(3, lambda: not any(alive(pid) for pid in pids.values()))
    await client.close()


async def test_told_to_end_the_engine_ends_its_workers(odd_model: Path, alive: Alive, tmp_path: Path) -> None:
    from orcaserve.serving.launcher import EngineProcess

    path = tmp_path / "run.json"
    engine = EngineProcess(settings(odd_model, 2, timeline=path))
    engine.start()
    client = await engine.connect(60)
    pids = workers(engine.pid)
    _ = [news async for news in client.submit(Request(1, [3, 4], Params(max_tokens=5, temperature=0)))]
    assert await engine.stop() == 0
    assert not any(alive(pid) for pid in pids.values())
    assert path.exists()
    await client.close()


LEFT_ALONE = """
import sys, time
from pathlib import Path
from orcaserve.config import *
from orcaserve.engine.host import EngineHost
host = EngineHost.load(EngineConfig.from_json(sys.argv[1]), lambda report: None)
print("ready", flush=True)
time.sleep(100)
"""


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize("when", ["ready", "loading"])
def test_workers_end_with_the_engine(when: str, odd_model: Path, alive: Alive, within: Within) -> None:
    command = [sys.executable, "-c", LEFT_ALONE, settings(odd_model, 2, 2).to_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        if when == "ready":
            engine.stdout.readline()
        assert within(20, lambda: len(workers(engine.pid)) == 4)
        pids = workers(engine.pid)
        if when == "ready":
            os.kill(pids["s1r0"], signal.SIGSTOP)  # even so
        engine.kill()
        assert within(5, lambda: not any(alive(pid) for pid in pids.values()))


def test_health_and_strangers(odd_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its socket can be found, a worker answers gRPC's health service, and has one master only."""
    from orcaserve.control_plane.channel import worker_socket
    from orcaserve.control_plane.health import is_serving
    from orcaserve.control_plane.worker_pb2_grpc import WorkerStub
    from orcaserve.engine.worker_group import WorkerGroup

    monkeypatch.setattr(WorkerGroup, "_remove_folder", lambda self: None)
    with Running(settings(odd_model, 2)) as engine:
        group = engine.host._engine._group  # type: ignore[attr-defined]
        with grpc.insecure_channel(f"unix:{worker_socket(group._folder, 's0r0')}") as channel:
            assert is_serving(channel, 5)
            with pytest.raises(grpc.RpcError) as refusal:
                list(WorkerStub(channel).Attach(iter(()), timeout=5))  # type: ignore[no-untyped-call]
            assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    monkeypatch.undo()
    group._remove_folder()
