"""`orcaserve replay` on the log of a real run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from orcaserve.cli.main import main
from orcaserve.core import FinishReason, IterationResult, Request, SamplingParams
from orcaserve.schedule_log.format import Settings
from orcaserve.schedule_log.recorder import ScheduleRecorder
from orcaserve.schedule_log.rotating_file import RotatingFile
from orcaserve.scheduler import Scheduler
from orcaserve.scheduler.policies import EvenBatches


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 requests at once on an engine whose iterations take 10 ms and 0.1 ms for each token; 4 in a batch."""
    path = tmp_path_factory.mktemp("replay") / "run.log"
    settings = Settings("iteration-level", 4, 4096, 16, 1, 256, model="tiny")
    scheduler = Scheduler(4096, 4, 1, 16, EvenBatches(1))
    now = 0.0
    recorder = ScheduleRecorder(settings, RotatingFile(path, 1), 2**20, lambda: now)
    recorder.begin()
    for i in range(40):
        request = Request(i, range(10 + i), SamplingParams(max_tokens=5 + i % 7))
        scheduler.add(request, now)
        recorder.arrived(request, now)
    n_ended = 0
    while (batch := scheduler.next_batch()) is not None:
        recorder.handed_out(batch, scheduler.selection, scheduler.n_reserved, scheduler.n_used, now)
        recorder.turn_over(now)
        seconds = 0.01 + 0.0001 * batch.n_tokens
        now += seconds
        result = IterationResult(batch.iteration, [7] * len(batch.entries), seconds=seconds)
        news = scheduler.complete(result)
        recorder.returned(result, news, now)
        n_ended += sum(each.finish_reason is FinishReason.LENGTH for each in news)
    recorder.ended([], now)
    assert n_ended == 40
    return path


def replay(log: Path, *flags: str) -> int:
    return main(["replay", str(log), *flags])


def answer(log: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, dict[str, float]]:
    assert replay(log, "--json", *flags) == 0
    found: dict[str, dict[str, float]] = json.loads(capsys.readouterr().out)
    return found


def test_as_it_was(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(log, capsys)
    was, again = found["recorded"], found["replayed"]
    assert found["difference"] is None and found["batches_reproduced"] == was["n_iterations"] == again["n_iterations"]
    assert again["seconds"] == pytest.approx(was["seconds"], rel=0.01)
    assert "changed" not in found or not found["changed"]
    assert replay(log) == 0
    text = capsys.readouterr().out
    assert "all " in text and "the same as recorded" in text and "replayed as it was" in text


def test_what_would_have_changed(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twice the batch is not twice the time; a memory that holds one request runs them one by one."""
    wide = answer(log, capsys, "--max-num-seqs", "8")
    assert wide["changed"]["seconds"] < 0.75 * wide["replayed"]["seconds"]
    narrow = answer(log, capsys, "--n-slots", "64")
    assert narrow["changed"]["seconds"] > 2 * narrow["replayed"]["seconds"]
    whole = answer(log, capsys, "--scheduling-policy", "request-level")
    assert whole["changed"]["seconds"] > whole["replayed"]["seconds"]
    assert replay(log, "--max-num-seqs", "8") == 0
    text = capsys.readouterr().out
    assert "with max_bs 8" in text and "would have ended sooner" in text


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--max-num-seqs", "0"], "--max-num-seqs: must be an integer of 1 or more"),
        (["--n-slots", "8"], "--n-slots: must be an integer of 16 or more"),
        (
            ["--microbatch-size", "2"],
            "--microbatch-size: means something for request-level only, not for iteration-level",
        ),
        (["--scheduling-policy", "request-level", "--n-slots", "128"], "request-level reserves 256 slots"),
        (["--first-iteration", "whole"], "--first-iteration: means something for request-level only"),
    ],
)
def test_settings_that_cannot_be(
    log: Path, flags: Sequence[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(log, *flags) == 2
    error = capsys.readouterr().err
    assert what in error and error.count("\n") == 1


def test_an_unknown_policy(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        replay(log, "--scheduling-policy", "fair")
    assert ended.value.code == 2
    assert "invalid choice: 'fair'" in capsys.readouterr().err


def test_a_log_that_another_scheduler_has_written(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "run.log"
    other.write_bytes(log.read_bytes().replace(b'"max_bs":4', b'"max_bs":3'))
    assert replay(other) == 1
    assert "then iteration 1: with nobody more and [3] less than recorded" in capsys.readouterr().out
