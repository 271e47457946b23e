"""`orcaserve simulate`: every policy, the papers' machines, files, and what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from orcaserve.cli.main import main
from orcaserve.config import POLICY_NAMES

SHORT = ["--n", "30", "--rate", "2", "--max-output", "12"]


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_policy_serves_every_request(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--scheduling-policy", policy, "--max-num-seqs", "4"]
    flags += ["--microbatch-size", "2"] if policy == "request-level" else []
    assert main(["simulate", "175b", *SHORT, *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["n_requests"] == 30 and found["n_refused"] == 0
    assert found["normalised"]["p50"] > 0 and 0 < found["utilisation"] <= 1


def test_a_table_and_a_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = tmp_path / "run.svg"
    assert main(["simulate", "341b", *SHORT, "--timeline", str(drawn)]) == 0
    assert "between tokens" in capsys.readouterr().out
    ElementTree.parse(drawn)
    assert "s3" in drawn.read_text()


def test_a_file_on_an_accelerator(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "default", "--hardware", "h100", *SHORT, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hardware"] == "1 x 1 h100"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--n-slots", "1"], "--n-slots"),
        (["--n-slots", "10000000"], "--n-slots"),
        (["--max-num-seqs", "0"], "--max-num-seqs"),
        (["--microbatch-size", "2"], "--microbatch-size"),
        (["--scheduling-policy", "request-level", "--n-slots", "100"], "--scheduling-policy"),
        (["-tp", "2", "-pp", "1"], "MODEL"),
    ],
)
def test_a_wrong_flag_is_named_in_one_line(flags: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "175b", *SHORT, *flags]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1
