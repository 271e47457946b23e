"""Lines written by several benchmarks come back as one table."""

from __future__ import annotations

from pathlib import Path

from report import Line, goal_table, read_lines, write_lines


def test_lines_of_several_scripts_make_one_table(tmp_path: Path) -> None:
    path = str(tmp_path / "lines.jsonl")
    one = Line("decode", "3 x", "310", "100 (openvino Q4_0)", "3.10 x", True)
    two = Line("memory", "300 MB", "310 MB", "", "", False)
    write_lines([one], path)
    write_lines([two], path)
    write_lines([two], None)
    assert read_lines(path) == [one, two]
    text = goal_table([one, two, Line("trace", "6 x", "9.1", "", "", None)])
    assert [word in text for word in ("| PASS |", "| **FAIL** |", "| not measured |")] == [True] * 3
