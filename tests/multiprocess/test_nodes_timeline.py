"""A timeline over two machines whose clocks differ: the other one's is a time namespace, a thousand seconds ahead."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from two_machines import pair_of

pytest.importorskip("torch")
pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(sys.platform != "linux", reason="uses time namespaces")]
AHEAD = ("unshare", "--time", "--monotonic", "1000")


@pytest.fixture
def ahead() -> tuple[str, ...]:
    try:
        look = [*AHEAD, sys.executable, "-c", "import time; print(time.monotonic())"]
        done = subprocess.run(look, capture_output=True, text=True, timeout=30)
        here = subprocess.run(look[len(AHEAD) :], capture_output=True, text=True, timeout=30)
    except OSError as error:
        pytest.skip(f"needs the command unshare (package util-linux): {error}")
    if done.returncode or not 900 < float(done.stdout) - float(here.stdout) < 1100:
        pytest.skip(f"time namespaces are not allowed here: {done.stderr.strip()}")
    return AHEAD


def work(events: list[dict[str, Any]], worker: int) -> dict[int, tuple[float, float]]:
    """Beginning and end of each iteration's computation there, in milliseconds."""
    return {
        event["args"]["iteration"]: (event["ts"] / 1000, (event["ts"] + event["dur"]) / 1000)
        for event in events
        if event.get("cat") == "compute" and event["tid"] == worker
    }


def test_what_two_machines_did_stands_on_one_clock(ahead: tuple[str, ...], served_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with pair_of(served_model, inside=((), ahead), own=(("--timeline", str(path)), ())) as pair:
        for prompt in ("a", "the sea is"):
            pair.complete(prompt=prompt, max_tokens=60)
    trace = json.loads(path.read_text())
    (error,) = trace["otherData"]["clock_error_ms"].values()
    print(f"right to {error:.2f} ms")
    assert list(trace["otherData"]["clock_error_ms"]) == ["s1r0"] and 0 < error < 1000
    first, second = work(trace["traceEvents"], 0), work(trace["traceEvents"], 1)
    assert set(first) == set(second) and len(first) >= 100
    for number, (_, end) in sorted(first.items()):
        assert second[number][0] >= end - error, "a stage computes after the one before it"
        if number > 1:
            assert first[number][0] >= second[number - 1][1] - error, "a token follows the last one"
    assert "times of other machines are right to" in path.with_suffix(".svg").read_text()
    assert all(0 <= share < 1 for share in trace["otherData"]["idle_shares"].values())
