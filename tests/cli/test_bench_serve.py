"""`orcaserve bench serve`: wrong use is one line that names the flag."""

from __future__ import annotations

from pathlib import Path

import pytest

from orcaserve.cli.main import main

NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        ([], 1, "nobody answers there"),
        (["--target", "fast"], 2, "--target: 'fast' is no target"),
        (["--workload", "mine.txt"], 2, "--workload: 'mine.txt' is none of paper"),
        (["--workload", "no/such.csv"], 2, "no/such.csv: cannot be read"),
        (["--workload", "azure-code", "--n", "9000"], 2, "--n: azure-code has 8819 requests"),
        (["--rate", "0"], 2, "--rate"),
        (["--rate", "inf"], 2, "--rate"),
        (["--n", "0"], 2, "--n"),
        (["--max-input", "-3"], 2, "--max-input"),
        (["--concurrency", "0"], 2, "--concurrency: takes 1 or more"),
        (["--concurrency", "2", "--rate", "3"], 2, "--concurrency: goes with neither"),
        (["--timeout", "nan"], 2, "--timeout"),
        (["--extra-body", '{"stream": false}'], 2, "--extra-body"),
        (["--extra-body", "[]"], 2, "--extra-body"),
        (["--rows", "no/such/folder/rows"], 1, "no/such/folder/rows: No such file"),
    ],
)
def test_wrong_use_is_one_line(flags: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        got = main(["bench", "serve", NOBODY, *flags])
    except SystemExit as end:
        got = int(end.code or 0)
    err = capsys.readouterr().err
    assert (got, len(err.strip().splitlines())) == (code, 1), err
    assert says in err


def test_a_trace_with_a_wrong_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,5,5\n1,-2,5\n")
    assert main(["bench", "serve", NOBODY, "--workload", str(path)]) == 2
    assert f"{path}, line 3, ContextTokens: must be from 1" in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "serve", "--help"])
    text = capsys.readouterr().out
    assert "examples:" in text and "azure-conv" in text and "open loop" in text
