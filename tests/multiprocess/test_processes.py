"""The engine in a real process of its own: its birth, its name, every way to die, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orcaserve.config import EngineConfig, KVConfig, ModelConfig
from orcaserve.core import ConfigError, EngineError, FinishReason, ModelError, Progress, Request, SamplingParams
from orcaserve.core.errors import ENGINE_LOST
from orcaserve.serving.launcher import EngineProcess

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]

Alive = Callable[[int], bool]
Within = Callable[[float, Callable[[], bool]], bool]
STAND_IN = Path(__file__).with_name("stand_in_endpoint.py")


@pytest.fixture
def config(tiny_model: Path) -> EngineConfig:
    return EngineConfig(ModelConfig(tiny_model, "tiny", threads=1), KVConfig(n_slots=4096))


@pytest.fixture
def engine(config: EngineConfig) -> Iterator[EngineProcess]:
    engine = EngineProcess(config)
    engine.start()
    yield engine
    assert engine._child is not None
    engine._child.kill()
    engine._child.wait()


def long_request(id: int, max_tokens: int = 1000) -> Request:
    return Request(id, [3, 4, 5], SamplingParams(max_tokens=max_tokens, temperature=0))


def directory(engine: EngineProcess) -> Path:
    assert engine.socket is not None
    return engine.socket.parent


def title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()


def threads(pid: int) -> set[str]:
    return {Path(task, "comm").read_text().strip() for task in Path(f"/proc/{pid}/task").iterdir()}


def network_sockets(pid: int) -> list[str]:
    """Lines of the kernel's tables about sockets of this process that are not Unix sockets."""
    own = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()}
    tables = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6", "udp", "udp6")]
    return [line for lines in tables for line in lines if f"socket:[{line.split()[9]}]" in own]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_serves_a_model_under_its_name_and_ends_when_asked(
    engine: EngineProcess, alive: Alive, within: Within
) -> None:
    place = directory(engine)
    assert place.stat().st_mode & 0o777 == 0o700
    client = await engine.connect(60)
    assert (client.facts.model_name, client.facts.vocab_size, client.facts.n_slots) == ("tiny", 256, 4096)
    assert client.facts.eos_ids == {2}
    assert within(1, lambda: not place.exists()), "once attached there is no socket to find"
    assert title(engine.pid) == "orcaserve: engine"
    assert "worker s0r0" in threads(engine.pid)
    streams = [client.submit(long_request(i, 40)) for i in range(3)]
    texts = [[p.token async for news in s for p in news] for s in streams]
    assert len(texts[0]) == 40
    assert texts[0] == texts[1] == texts[2]
    assert await engine.stop() == 0
    await asyncio.wait_for(client.closed.wait(), 1)
    assert not alive(engine.pid)
    await client.close()


async def test_no_tcp_and_no_cpu_when_idle(engine: EngineProcess) -> None:
    client = await engine.connect(60)
    _ = [news async for news in client.submit(long_request(1, 5))]
    assert network_sockets(engine.pid) == []
    await asyncio.sleep(0.3)
    before = cpu_seconds(engine.pid)
    await asyncio.sleep(2)
    assert cpu_seconds(engine.pid) - before <= 0.04
    await client.close()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
async def test_an_engine_that_dies_is_noticed_at_once(engine: EngineProcess, signum: int) -> None:
    """One request has room at a time, and all would take some 200,000 iterations: whatever ends by itself before the
    signal takes effect, the last ones do not, however fast the machine is or slow this process."""
    client = await engine.connect(60)
    streams = [client.submit(long_request(i, 4000)) for i in range(50)]
    first = await anext(streams[0])
    started = time.monotonic()
    os.kill(engine.pid, signum)
    news = [list(first), *([] for _ in streams[1:])]
    for own, stream in zip(news, streams, strict=True):
        own += [p async for some in stream for p in some]
    n_whole = sum(own[-1].finish_reason is FinishReason.LENGTH for own in news)
    assert n_whole < len(streams) - 2
    for own in news[:n_whole]:
        assert sum(p.token is not None for p in own) == 4000
    for own, stream in list(zip(news, streams, strict=True))[n_whole:]:
        assert own[-1] == Progress(stream.request_id, None, FinishReason.ERROR, ENGINE_LOST)
    await client.closed.wait()
    code = await engine.wait()
    assert time.monotonic() - started < 1
    assert code == (0 if signum == signal.SIGTERM else -signum)
    with pytest.raises(EngineError):
        client.submit(long_request(99))
    await client.close()


async def test_an_engine_that_hangs_is_killed(engine: EngineProcess, alive: Alive) -> None:
    client = await engine.connect(60)
    os.kill(engine.pid, signal.SIGSTOP)
    assert await engine.stop(grace=0.3) == -signal.SIGKILL
    assert not alive(engine.pid)
    await client.close()


async def test_an_engine_killed_while_it_loads_leaves_nothing(engine: EngineProcess) -> None:
    place = directory(engine)
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="code -9"):
        await engine.connect(60)
    assert not place.exists()


async def test_an_engine_stopped_while_it_loads_leaves_nothing(engine: EngineProcess, within: Within) -> None:
    place = directory(engine)
    assert within(30, (place / "engine.sock").exists)
    assert await asyncio.wait_for(engine.stop(), 3) == 0
    assert not place.exists()


async def test_an_endpoint_that_leaves_ends_the_engine(engine: EngineProcess) -> None:
    client = await engine.connect(60)
    await client.close()
    assert await asyncio.wait_for(engine.wait(), 2) == 0


async def test_a_model_that_cannot_be_loaded(tmp_path: Path, tiny_model: Path) -> None:
    for name in ("model.safetensors", "config.json"):
        (tmp_path / name).write_bytes((tiny_model / name).read_bytes()[: 100 if name.startswith("model") else None])
    engine = EngineProcess(EngineConfig(ModelConfig(tmp_path, "broken")))
    engine.start()
    place = directory(engine)
    with pytest.raises(ModelError):
        await engine.connect(60)
    assert await engine.wait() == 3
    assert not place.exists()


async def test_a_region_that_does_not_fit(tiny_model: Path) -> None:
    engine = EngineProcess(EngineConfig(ModelConfig(tiny_model, "tiny"), KVConfig(n_slots=2**40)))
    engine.start()
    with pytest.raises(
        ConfigError, match=r"^--n-slots: 1099511627776 slots of 256 bytes need .* MiB of memory are free"
    ):
        await engine.connect(60)
    assert await engine.wait() == 3


async def test_not_ready_in_time(engine: EngineProcess) -> None:
    with pytest.raises(EngineError, match=r"not ready within 0\.01 s"):
        await engine.connect(0.01)
    await engine.stop()


async def test_a_directory_name_too_long_for_a_socket(
    config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with pytest.raises(ConfigError, match="TMPDIR"):
        EngineProcess(config).start()
    assert not list(long.iterdir())


async def test_starts_from_any_directory(config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('code from the working directory was run')")
    monkeypatch.chdir(tmp_path)
    engine = EngineProcess(config)
    engine.start()
    client = await engine.connect(60)
    await client.close()
    await engine.wait()


@contextmanager
def stand_in(model: Path, max_tokens: int) -> Iterator[tuple[subprocess.Popen[str], Callable[[str], str]]]:
    """The stand-in endpoint, and a function that reads its output up to a line with this word and returns the rest."""
    command = [sys.executable, str(STAND_IN), str(model), str(max_tokens)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    output = process.stdout

    def read_to(word: str) -> str:
        for line in output:
            if match := re.fullmatch(rf"{word} ?(.*)\n", line):
                return match[1]
        raise AssertionError(f"it ended before it said {word}")

    try:
        yield process, read_to
    finally:
        process.kill()
        process.wait()
        output.close()


@pytest.mark.parametrize("moment", ["engine", "socket", "bound", "ready", "running"])
def test_the_engine_dies_with_its_endpoint_and_leaves_nothing(
    tiny_model: Path, moment: str, alive: Alive, within: Within
) -> None:
    with stand_in(tiny_model, 4000) as (endpoint, read_to):
        pid = int(read_to("engine"))
        place = Path(read_to("socket")).parent
        if moment == "bound":
            assert within(30, lambda: any(place.iterdir()))
        elif moment in ("ready", "running"):
            read_to(moment)
        endpoint.kill()
        assert within(1, lambda: not alive(pid))
        assert within(1, lambda: not place.exists())


def test_a_stopped_engine_dies_with_its_endpoint_too(tiny_model: Path, alive: Alive, within: Within) -> None:
    with stand_in(tiny_model, 4000) as (endpoint, read_to):
        pid = int(read_to("engine"))
        read_to("running")
        os.kill(pid, signal.SIGSTOP)
        endpoint.kill()
        assert within(1, lambda: not alive(pid))


def test_an_endpoint_that_is_stopped_for_a_while_loses_nothing(tiny_model: Path, alive: Alive) -> None:
    with stand_in(tiny_model, 1500) as (endpoint, read_to):
        pid = int(read_to("engine"))
        read_to("running")
        endpoint.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        assert alive(pid)
        endpoint.send_signal(signal.SIGCONT)
        assert read_to("end") == "1500 LENGTH"
        assert endpoint.wait(10) == 0
        assert not alive(pid)
