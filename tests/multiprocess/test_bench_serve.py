"""`orcaserve bench serve` as a process, against a served model."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import Serve

Within = Callable[[float, Callable[[], bool]], bool]


@pytest.fixture(scope="module")
def server(served_model: Path) -> Iterator[Serve]:
    serve = Serve("--model", str(served_model), "--port", "0", "-t", "1", "--n-slots", "8192")
    yield serve
    serve.stop()


def bench(server: Serve, *flags: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orcaserve", "bench", "serve", server.base, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def result(server: Serve, *flags: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bench(server, "--json", *flags, code=code).stdout)
    return found


def test_an_open_loop(server: Serve, tmp_path: Path) -> None:
    rows_file = tmp_path / "rows.jsonl"
    flags = ("--rate", "40", "--n", "30", "--max-input", "50", "--max-output", "20", "--rows", str(rows_file))
    before = server.metric("orcaserve_prompt_tokens_total")
    found = result(server, *flags, "--target", "p50_normalized<=10s")
    rows = [json.loads(line) for line in rows_file.read_text().splitlines()]
    assert found["whole"] == len(rows) == 30 and found["errors"] == {}
    assert found["odd_lengths"] == 0  # as many tokens as the trace says, each time
    assert found["input_tokens"] == found["wanted_input_tokens"] == sum(row["wanted_input"] for row in rows)
    assert server.metric("orcaserve_prompt_tokens_total") - before >= found["input_tokens"]
    assert found["run"]["prompts"].startswith("token ids")
    assert found["goodput_req_s"] == found["req_s"] and found["targets"][0]["met"]
    for name in ("ttft_ms", "e2e_ms", "normalized_ms"):
        assert 0 < found[name]["p50"] <= found[name]["p90"] <= found[name]["p99"] <= found[name]["most"]
    for row in rows:
        assert row["due"] <= row["sent"] < row["end"] and row["token_times"] == sorted(row["token_times"])


def test_a_closed_loop_of_chats(server: Serve) -> None:
    found = result(server, "--concurrency", "4", "--n", "9", "--endpoint", "chat", "--workload", "homogeneous:60:5")
    assert found["whole"] == 9 and found["output_tokens"] == 45
    assert found["run"]["prompts"].startswith("words")
    assert found["input_tokens"] == pytest.approx(9 * 60, rel=0.1)


def test_a_table_for_people_and_a_file(server: Serve, tmp_path: Path) -> None:
    out = bench(server, "--n", "3", "--workload", "homogeneous:5:4", "--json", str(tmp_path / "r.json")).stdout
    assert "3 whole of 3 sent" in out and "per token (normalized)" in out and "generator   sent late by" in out
    assert json.loads((tmp_path / "r.json").read_text())["whole"] == 3


def test_a_terminal_shows_how_it_goes(server: Serve) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "orcaserve", "bench", "serve", server.base, "--rate", "10", "--n", "20"]
    done = subprocess.run(
        [*command, "--workload", "homogeneous:5:5"], stdout=subprocess.PIPE, stderr=theirs, text=True, timeout=120
    )
    os.close(theirs)
    shown = os.read(ours, 2**16).decode()
    os.close(ours)
    assert done.returncode == 0 and "20 whole of 20" in done.stdout
    assert " of 20 sent, " in shown and "events/s" in shown and shown.endswith("\r\x1b[K")


def test_refusals_of_the_server_are_shown(server: Serve) -> None:
    done = bench(server, "--n", "3", "--workload", "homogeneous:9000:4", code=1)
    assert "FAILED      3 x HTTP 400" in done.stdout and "context length" in done.stdout


def test_ctrl_c_shows_what_there_is(server: Serve, within: Within) -> None:
    command = [sys.executable, "-m", "orcaserve", "bench", "serve", server.base, "--rate", "5", "--n", "1000"]
    running = subprocess.Popen(
        [*command, "--workload", "homogeneous:5:5"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    before = server.metric("orcaserve_requests_started_total")
    try:
        # Two of them choose the prompts.
        assert within(60, lambda: server.metric("orcaserve_requests_started_total") >= before + 6)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130
    assert "throughput" in out and "interrupted" in err and "Traceback" not in err


def test_the_server_goes_away(served_model: Path, within: Within) -> None:
    doomed = Serve("--model", str(served_model), "--port", "0", "-t", "1", "--n-slots", "8192")
    command = [sys.executable, "-m", "orcaserve", "bench", "serve", doomed.base, "--concurrency", "2", "--n", "400"]
    running = subprocess.Popen(
        [*command, "--workload", "homogeneous:5:200", "--timeout", "20"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert within(60, lambda: doomed.metric("orcaserve_requests_started_total") >= 6)
        doomed.process.kill()
        out, _ = running.communicate(timeout=100)
    finally:
        running.kill()
        doomed.stop()
    assert "FAILED" in out and ("no connection" in out or "the stream broke" in out)
