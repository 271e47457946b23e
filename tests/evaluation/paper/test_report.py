"""`orcaserve reproduce`: figures, report and JSON, from a run of the command."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from orcaserve.cli.main import main
from orcaserve.evaluation.paper import published
from orcaserve.evaluation.paper.anchors import Anchors
from orcaserve.evaluation.paper.figure3 import figure_3
from orcaserve.evaluation.paper.figure8 import figure_8
from orcaserve.evaluation.paper.figure10 import figure_10, figure_11
from orcaserve.evaluation.paper.report import as_json, html
from orcaserve.evaluation.paper.sweep import SHARES


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name in ("src", "href") and value]


def test_a_short_run_writes_report_pictures_and_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, data = tmp_path / "out", tmp_path / "points.json"
    assert main(["reproduce", "--figure", "3", "--figure", "8", "--out", str(out), "--json", str(data)]) == 0
    assert {path.name for path in out.iterdir()} >= {"report.html", "figure-3.svg", "figure-8.svg", "figure-8.png"}
    ElementTree.parse(out / "figure-3.svg")
    assert (out / "figure-8.png").read_bytes().startswith(b"\x89PNG")
    links = _Links()
    links.feed((out / "report.html").read_text())
    assert not links.found, "the report needs nothing beside it"
    found = json.loads(data.read_text())
    assert set(found["figures"]) == {"3", "8"} and found["figures"]["8"]["points"]
    assert found["factors"]["engine"]["bandwidth_share"]
    assert "Figure 8" in capsys.readouterr().out


def test_without_matplotlib_all_but_png_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orcaserve.evaluation.pictures.png.have_matplotlib", lambda: False)
    assert main(["reproduce", "--figure", "8", "--out", str(tmp_path)]) == 0
    assert "matplotlib" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "figure-8.svg"}


@pytest.mark.parametrize(
    ("flags", "named"),
    [(["--requests", "0"], "--requests"), (["--jobs", "0"], "--jobs"), (["--live-seconds", "0.1"], "--live-seconds")],
)
def test_wrong_flags_are_named(flags: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", *flags]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1


def test_figures_10_and_11_hold_all_curves() -> None:
    ten, eleven = figure_10(1, 0.02), figure_11(1, 0.02)
    assert len(ten.points) == 3 * 6 * len(SHARES)
    assert len(eleven.points) == 2 * 7 * len(SHARES)
    assert {point["system"] for point in ten.points} >= {"ft(1,1)", "ft(8,8)", "orca(32)"}
    assert all(point["req_s"] > 0 and point["p50_normalized_ms"] > 0 for point in ten.points)  # type: ignore[operator]
    ElementTree.fromstring(ten.drawing.svg())


def test_figure_3_shows_who_waits() -> None:
    (table,) = figure_3().tables
    rows = {row[0]: [float(cell) for cell in row[1:]] for row in table.rows}
    assert rows["x2"] == [6, 2], "held back until x1 has ended; answered when it is done"
    assert rows["x3"][0] > rows["x3"][1]
    assert any(point["wasted"] for point in figure_3().points)


def test_figure_8_orca_s_pipeline_has_no_bubbles_but_at_its_ends() -> None:
    figure = figure_8()
    orca = [point for point in figure.points if str(point["run"]).startswith("Orca")]
    for worker in range(3):
        starts = sorted(float(str(point["start"])) for point in orca if point["worker"] == worker)
        assert starts == [worker + n for n in range(9)], "a worker waits between two batches"
    assert [str(p["requests"]) for p in orca if p["worker"] == 0][:4] == ["A1B1", "C1D1", "E1F1", "A2B2"]
    idle = [float(row[2].rstrip("%")) for row in figure.tables[0].rows]
    assert idle[0] < idle[1]


def test_json_has_the_anchors_by_name() -> None:
    anchors = Anchors(95.0, 0.49, 0.185, 6.81)
    data = as_json([], anchors)
    assert data["anchors"] == {
        "orca_175b_ms_per_token_fig9c": 95.0,
        "ft_101b_peak_req_s": 0.49,
        "ft_175b_at_190ms_req_s": 0.185,
        "orca_175b_at_190ms_req_s": 6.81,
        "ratio_at_190ms": pytest.approx(36.8, abs=0.1),
    }
    assert set(published.BANDS) == set(data["anchors"])  # type: ignore[call-overload]
    assert "37" in html([], anchors) or "36.8" in html([], anchors)
