"""`orcaserve bench`: rows in the form that other engines' measurements have, and tables for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from orcaserve.cli.main import main
from orcaserve.core import Request
from orcaserve.evaluation.measured_engine import MeasuredEngine

sys.path.insert(0, str(Path(__file__).parents[1]))
from lora_files import linears, write_adapter

PEER_FIELDS = {"engine", "form", "batch", "prompt", "gen", "prefill_tok_s", "decode_tok_s", "load_s"}
WORK = ("--batch", "1", "3", "--prompt", "8", "--gen", "4", "--repeat", "1", "-t", "1")
FLOATS = ("--dtype", "float32", "--kv-cache-dtype", "float32")


def test_throughput_rows_have_the_peers_form(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "throughput", "--json", "--model", str(tiny_model), *WORK, *FLOATS]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["batch"] for row in rows] == [1, 3]
    for row in rows:
        assert row.keys() >= PEER_FIELDS
        assert (row["engine"], row["form"], row["kv_cache_dtype"]) == ("orcaserve", "float32", "float32")
        assert (row["prompt"], row["gen"]) == (8, 4)
        assert row["prefill_tok_s"] > 0 and row["load_s"] >= 0


def test_requests_have_adapters_in_turn(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    submit = MeasuredEngine.submit

    def note(engine: MeasuredEngine, requests: Sequence[Request]) -> None:
        seen.extend(request.adapter for request in requests)
        submit(engine, requests)

    monkeypatch.setattr(MeasuredEngine, "submit", note)
    shapes = linears(tiny_model)
    adapters = [f"a{n}={write_adapter(tmp_path / str(n), shapes, n)}" for n in (1, 2)]
    flags = (*WORK, *FLOATS, "--lora-modules", *adapters)
    assert main(["bench", "throughput", "--json", "--model", str(tiny_model), *flags]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["adapters"] for row in rows] == [2, 2]
    assert seen == 3 * [1] + 3 * [1, 2, 1]


def test_latency_rows(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "latency", "--json", "--model", str(tiny_model), *WORK, *FLOATS]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["batch"] for row in rows] == [1, 3]
    for row in rows:
        for what in ("ttft", "gap"):
            assert 0 < row[f"{what}_ms_p50"] <= row[f"{what}_ms_p90"] <= row[f"{what}_ms_p99"]


def test_a_table_for_people(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "throughput", "--model", str(tiny_model), *WORK, *FLOATS]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split()[0] == "engine" and "decode_tok_s" in heading
    assert [row.split()[3] for row in rows] == ["1", "3"]


def test_batches_beyond_the_default_places_run_at_once(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = ("--batch", "80", "--prompt", "2", "--gen", "2", "--repeat", "1", "-t", "1")
    assert main(["bench", "latency", "--json", "--model", str(tiny_model), *work, *FLOATS]) == 0
    row = json.loads(capsys.readouterr().out)
    # One iteration starts them all: nobody's first token waits for somebody else's last.
    assert row["ttft_ms_p99"] < row["ttft_ms_p50"] * 2 + 1


def test_startup_of_the_default_model(default_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "startup", "--json", "--repeat", "1", "-t", "1"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert 0 < row["help_s"] < row["ready_s"] <= row["serve_s"]
    assert row["engine_peak_mb"] > row["weights_mb"] > 0 and row["kv_mb"] > 0
    both = row["engine_peak_mb"] + row["endpoint_peak_mb"] - row["weights_mb"] - row["kv_mb"]
    assert row["beside_weights_and_kv_mb"] == pytest.approx(both, abs=0.3)


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["throughput", "--batch", "0"], 2, "--batch"),
        (["throughput", "--gen", "x"], 2, "--gen"),
        (["startup", "--n-slots", "64"], 2, "is chosen by `bench startup` itself"),
        (["fly"], 2, "fly"),
        ([], 2, "throughput|latency|startup"),
        (["latency", "--model", "no/such/file.gguf"], 3, "no such file"),
    ],
)
def test_wrong_use_is_one_line(args: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        got = main(["bench", *args])
    except SystemExit as end:
        got = int(end.code or 0)
    err = capsys.readouterr().err
    assert (got, len(err.strip().splitlines())) == (code, 1), err
    assert says in err
