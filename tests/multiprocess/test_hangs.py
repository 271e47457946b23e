"""A device that hangs while its process lives is named and replaced in time; a long iteration is no hang.

The hang is real: the kernel holds one thread of a process, and no other.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from disturbed import Alive, Stream, Within, outcomes, replaced, serving
from frozen_thread import FrozenThread, seconds_of, thread_of, threads_of
from server_process import Serve, workers
from two_machines import pair_of

from orcaserve.config import EngineConfig, KVConfig, ModelConfig, ParallelConfig
from orcaserve.core.errors import ENGINE_LOST

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc, and uses ptrace"),
    pytest.mark.timeout(600),
]
TIMEOUT = 3.0
LATEST = 60.0  # on a machine whose cores are all busy; what it took is printed
FLOATS = ("--quantization", "none", "--dtype", "float32", "--kv-cache-dtype", "float32")
# One prompt is computed again and again.
ALONE = ("--no-enable-prefix-caching", "--max-num-batched-tokens", "0")
FLAGS = ("--n-slots", "12288", "--device-timeout", f"{TIMEOUT:g}", "--engine-timeout", "60", *FLOATS, *ALONE)
LONG = {"prompt": "word " * 4000, "max_tokens": 1, "temperature": 0}
BODY = {"prompt": "The sea is " * 300, "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module", autouse=True)
def ptrace_allowed() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            FrozenThread(other.pid, threads_of(other.pid)[0])
        except OSError as error:
            pytest.skip(f"ptrace is not allowed here: {error.strerror}")
        finally:
            other.kill()


@contextmanager
def frozen_while(serve: Serve, pid: int, name: str, within: Within) -> Iterator[float]:
    """A stream in whose first iteration that thread is stopped, having computed a while: since when.

    Its text is the one of an undisturbed run.
    """
    undisturbed = outcomes([Stream(serve, **BODY)])
    tid = thread_of(pid, name)
    before = seconds_of(pid, tid)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(Stream, serve, **BODY)
        assert within(60, lambda: seconds_of(pid, tid) > before + 0.3)
        FrozenThread(pid, tid)
        yield time.monotonic()
        assert outcomes([running.result()]) == undisturbed


def test_one_process(default_model: Path, folder: Path, alive: Alive, within: Within) -> None:
    with serving(default_model, FLAGS, folder, alive, within) as serve:
        engine = serve.engine_pid
        started = time.monotonic()
        serve.complete(**LONG)
        print(f"an iteration of {time.monotonic() - started:.1f} s, and no hang")
        assert serve.engine_pid == engine, "".join(serve.log)
        with frozen_while(serve, engine, "worker s0r0", within) as since:
            assert within(LATEST, lambda: not alive(engine))
            took = time.monotonic() - since
            print(f"noticed after {took:.1f} s")
            assert took > TIMEOUT * 7 / 8
        assert within(40, lambda: replaced(serve, engine))
        words = "worker s0r0 hangs in the midst of an iteration: its device has begun nothing for 3 s"
        assert any(words in line for line in serve.log), "".join(serve.log)


@pytest.mark.parametrize(("cut", "victim"), [(("-pp", "2"), "s0r0"), (("-pp", "2"), "s1r0"), (("-tp", "2"), "s0r1")])
def test_a_worker(
    cut: tuple[str, ...], victim: str, default_model: Path, folder: Path, alive: Alive, within: Within
) -> None:
    """Those that wait for it are not blamed."""
    with serving(default_model, (*FLAGS, *cut), folder, alive, within) as serve:
        engine = serve.engine_pid
        pid = workers(engine)[victim]
        with frozen_while(serve, pid, f"worker {victim}", within) as since:
            assert within(LATEST, lambda: not alive(pid))
            print(f"noticed after {time.monotonic() - since:.1f} s")
        assert within(40, lambda: replaced(serve, engine))
        (line,) = (line for line in serve.log if "the engine has ended" in line)
        if "-tp" in cut and "no worker computes" in line:
            return  # it was caught in the midst of a sum: then both wait for each other
        words = (
            rf"worker {victim} \(process {pid}\) hangs in the midst of an iteration: its device has begun nothing for "
        )
        assert re.search(words, line), "".join(serve.log)


def test_numbers_that_do_not_arrive(served_model: Path) -> None:
    """The thread that is stopped is the one that takes numbers from the network: everybody waits, nobody computes."""
    pytest.importorskip("torch")
    with pair_of(served_model, own=(("--device-timeout", f"{TIMEOUT:g}"), ())) as pair:
        undisturbed = pair.complete(prompt="the sea is", max_tokens=12)
        pid = workers(pair.node.process.pid)["s1r0"]
        FrozenThread(pid, thread_of(pid, "gloo_tcp_loop"))
        assert pair.complete(prompt="the sea is", max_tokens=12) == undisturbed
        words = rf"worker s1r0 \(process {pid} .*\) waits for s0r0, and no worker computes: nothing has moved for 3 s"
        assert re.search(words, pair.serve.text), pair.serve.text


HANGS = """
import sys
from orcaserve.config import EngineConfig
from orcaserve.core import SamplingParams
from orcaserve.llm import LLM
with LLM.from_config(EngineConfig.from_json(sys.argv[1])) as llm:
    print("ready", flush=True)
    (result,) = llm.generate("The sea is " * 300, SamplingParams(max_tokens=12, temperature=0))
    print(result.completions[0].error, flush=True)
"""


def test_offline_it_is_an_error_and_no_wait_for_ever(default_model: Path, within: Within) -> None:
    config = EngineConfig(
        ModelConfig(default_model, "default", quantization="none", threads=1),
        KVConfig(n_slots=8192),
        parallel=ParallelConfig(device_timeout=TIMEOUT),
    )
    command = [sys.executable, "-c", HANGS, config.to_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
        try:
            assert one.stdout is not None and one.stdout.readline() == "ready\n"
            tid = thread_of(one.pid, "worker s0r0")
            before = seconds_of(one.pid, tid)
            assert within(60, lambda: seconds_of(one.pid, tid) > before + 0.3)
            FrozenThread(one.pid, tid)
            said, log = one.communicate(timeout=60)
        finally:
            one.kill()
    assert said == f"{ENGINE_LOST}\n"
    assert "worker s0r0 hangs" in log and one.returncode == 0
