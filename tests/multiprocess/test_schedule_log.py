"""`orcaserve serve --schedule-log`: from HTTP to a log that is reproduced, with engines that are killed too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from server_process import Serve

from orcaserve.cli.main import main
from orcaserve.schedule_log.format import Arrived, HandedOut, Over
from orcaserve.schedule_log.reader import read_log
from orcaserve.schedule_log.rotating_file import part_path
from orcaserve.simulation.reproduce import reproduce

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

FLAGS = ("--port", "0", "--n-slots", "8192", "-t", "1", "--max-model-len", "1024", "-np", "3")
SIZES = [(1 + 7 * i, 5 + i % 4) for i in range(12)]


def served(model: Path, path: Path, *flags: str, kill: bool = False) -> None:
    serve = Serve(str(model), *FLAGS, "--schedule-log", str(path), *flags)
    try:
        with ThreadPoolExecutor(len(SIZES)) as pool:
            answers = [pool.submit(serve.complete, "x" * n_input, max_tokens=n) for n_input, n in SIZES]
            if kill:
                answers.append(pool.submit(serve.complete, "y", max_tokens=900))
                os.kill(serve.engine_pid, signal.SIGKILL)
            for answer in answers:
                answer.result()
        assert serve.metric("orcaserve_preemptions_total") == 0
        assert serve.stop() == 0
    finally:
        serve.process.kill()


@pytest.mark.parametrize("policy", ["iteration-level", "request-level"])
def test_what_was_served_is_reproduced(served_model: Path, tmp_path: Path, policy: str) -> None:
    path = tmp_path / "run.log"
    served(served_model, path, "--scheduling-policy", policy)
    log = read_log(path)
    assert log.settings.policy == policy and log.settings.max_bs == 3 and log.settings.longest == 1024
    assert isinstance(log.events[-1], Over) and not log.cut
    assert sorted(e.request.asked for e in log.events if isinstance(e, Arrived)) == sorted(n for _, n in SIZES)
    found = reproduce(log)
    assert found.difference is None
    assert found.n_same == sum(isinstance(event, HandedOut) for event in log.events)
    assert main(["explain", str(path), "1"]) == 0


def test_a_killed_engine_leaves_what_it_had_and_the_next_begins_anew(served_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    served(served_model, path, kill=True)
    before, after = read_log(part_path(path, 1)), read_log(path)
    assert reproduce(before).difference is None and reproduce(after).difference is None
    assert after.whole and any(event.request.asked == 900 for event in after.events if isinstance(event, Arrived))


def test_replicas_write_their_own(served_model: Path, tmp_path: Path) -> None:
    served(served_model, tmp_path / "run.log", "-dp", "2")
    logs = [read_log(tmp_path / f"run-{number}.log") for number in (0, 1)]
    arrived = [sum(isinstance(event, Arrived) for event in log.events) for log in logs]
    assert sum(arrived) == len(SIZES) and all(arrived)
    assert all(reproduce(log).difference is None for log in logs)


def test_a_log_that_cannot_be_made_ends_the_start(served_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "no" / "run.log"
    command = [sys.executable, "-m", "orcaserve", "serve", str(served_model), *FLAGS, "--schedule-log", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert f"orcaserve: --schedule-log: {path}: No such file or directory\n" in ended.stderr
