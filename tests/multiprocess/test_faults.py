"""An exception in an iteration: the engine ends, all requests go on in another, and whoever causes it is stopped."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from disturbed import Alive, Stream, Within, bodies, outcomes, replaced, run_all, serving
from server_process import BYTES, Serve

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
POISON = "~"


@pytest.fixture(
    params=[((), "engine"), (("-pp", "2"), "0,0"), (("-pp", "2"), "1,0")], ids=["one process", "s0r0", "s1r0"]
)
def faulty(
    request: pytest.FixtureRequest, served_odd_model: Path, folder: Path, alive: Alive, within: Within, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[Serve, Path]]:  # fmt: skip
    """A server, and the file that makes an iteration raise."""
    cut, where = request.param
    chance = tmp_path / "now"
    paths = [str(Path(__file__).parent / "faults"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("FAULTS_AT", where)
    monkeypatch.setenv("FAULTS_FILE", str(chance))
    monkeypatch.setenv("FAULTS_TOKEN", str(BYTES + ord(POISON)))
    flags = (*cut, "--max-num-seqs", "2")
    with serving(served_odd_model, flags, folder, alive, within, tracebacks=True) as serve:
        yield serve, chance


def test_an_iteration_raises(faulty: tuple[Serve, Path], within: Within) -> None:
    serve, chance = faulty
    wanted = [body | {"max_tokens": 40} for body in bodies(40)[:4]]
    undisturbed, engine = outcomes(run_all(serve, wanted, lambda: None)), serve.engine_pid
    chance.write_text("30")  # iterations: in the midst of the streams, however quick the machine is
    streams = run_all(serve, wanted, lambda: None)
    assert [stream.error for stream in streams] == [None] * len(wanted), "".join(serve.log)
    assert outcomes(streams) == undisturbed and not chance.exists()
    assert within(40, lambda: replaced(serve, engine))
    # By the engine itself: its last words to the endpoint may be cut off by its end.
    words = "the engine has failed: ", ": RuntimeError"
    assert any(all(word in line for word in words) for line in serve.log), "".join(serve.log)


def test_a_request_that_makes_iterations_raise_is_stopped_and_others_go_on(
    faulty: tuple[Serve, Path], within: Within
) -> None:
    """With at most two requests in a batch the poisoned one takes few others with it: those that were in flight with it
    in both crashes. Whoever came later goes on."""
    serve, _ = faulty
    others = [{"prompt": f"{i} cd", "max_tokens": 40 + i, "temperature": 0} for i in range(5)]
    undisturbed = outcomes(run_all(serve, others, lambda: None))
    with ThreadPoolExecutor(1 + len(others)) as pool:
        poisoned = pool.submit(Stream, serve, prompt=f"ab{POISON}", max_tokens=4, temperature=0)
        assert within(30, lambda: any("the engine has ended" in line for line in serve.log))
        time.sleep(0.1)
        running = [pool.submit(Stream, serve, **body) for body in others]
        failed = poisoned.result()
        answers = [stream.result() for stream in running]
    assert failed.error is not None and failed.error["code"] == "engine_crashed" and not failed.done
    assert failed.text == ""
    assert [answer.error for answer in answers] == [None] * len(others)
    assert outcomes(answers) == undisturbed
    assert serve.metric("orcaserve_engine_restarts_total") == 2
