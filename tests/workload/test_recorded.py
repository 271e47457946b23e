"""Traces as files: what is read, and what is refused with its line and field."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.core.errors import ConfigError
from orcaserve.workload.recorded import BUNDLED, MOST_TOKENS, read_trace

HEADING = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
DAY = "2023-11-16 18:15:46.6805900"


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize(("name", "n", "first"), [("azure-conv", 19366, (374, 44)), ("azure-code", 8819, (4808, 10))])
def test_bundled_traces(name: str, n: int, first: tuple[int, int]) -> None:
    arrivals = read_trace(BUNDLED[name])
    assert len(arrivals) == n
    assert (arrivals[0].n_input, arrivals[0].n_output) == first
    assert arrivals[0].time == 0 and 3400 < arrivals[-1].time < 3600


def test_bundled_code_trace_has_its_last_line() -> None:
    assert not gzip.decompress(BUNDLED["azure-code"].read_bytes()).endswith(b"\n")
    last = read_trace(BUNDLED["azure-code"])[-1]
    assert (last.n_input, last.n_output) == (549, 173)


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
@pytest.mark.parametrize(
    "times",
    [("3.5", "3.5", "7"), (DAY, DAY, "2023-11-16 18:15:50.18059"), ("2024-05-10T00:00:00+02:00", "2024-05-09T22:00:00Z",
     "2024-05-10 00:00:03.5+02:00")],
)  # fmt: skip
def test_ways_to_write_a_trace(tmp_path: Path, times: tuple[str, ...], name: str) -> None:
    rows = [f"{time},{i + 1},{9 - i}" for i, time in enumerate(times)]
    for text in ("\ufeff" + HEADING + "\n".join(rows), HEADING.replace("\n", "\r\n") + "\r\n\r\n".join(rows) + "\r\n"):
        arrivals = read_trace(write(tmp_path, text, name))
        assert [round(arrival.time, 5) for arrival in arrivals] == [0, 0, 3.5]
        assert [(arrival.n_input, arrival.n_output) for arrival in arrivals] == [(1, 9), (2, 8), (3, 7)]


def test_columns_in_any_order_among_others(tmp_path: Path) -> None:
    text = "user,GeneratedTokens, ContextTokens ,TIMESTAMP\nann,7,5,0\n"
    (arrival,) = read_trace(write(tmp_path, text))
    assert (arrival.n_input, arrival.n_output) == (5, 7)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: has no column TIMESTAMP"),
        ("TIMESTAMP,ContextTokens\n0,1\n", "line 1: has no column GeneratedTokens"),
        ("TIMESTAMP,TIMESTAMP,ContextTokens,GeneratedTokens\n", "line 1: has twice the column TIMESTAMP"),
        (HEADING, "holds no request"),
        (HEADING + "0,1,1\n0,1\n", "line 3: has 2 fields, and the heading names 3"),
        (HEADING + "0,1,1,1\n", "line 2: has 4 fields"),
        (HEADING + "0,-1,1\n", "line 2, ContextTokens: must be from 1 to 10000000, and is -1"),
        (HEADING + "0,1,0\n", "line 2, GeneratedTokens: must be from 1"),
        (HEADING + f"0,1,1\n\n0,{MOST_TOKENS + 1},1\n", "line 4, ContextTokens: must be from 1"),
        (HEADING + "0,12.5,1\n", "line 2, ContextTokens: is no whole number: '12.5'"),
        (HEADING + "0,,1\n", "line 2, ContextTokens: is no whole number: ''"),
        (HEADING + "0,1," + "9" * 5000 + "\n", "line 2, GeneratedTokens: is no whole number"),
        (HEADING + "1,1,1\n0.5,1,1\n", "line 3, TIMESTAMP: lies before the line above"),
        (HEADING + f"{DAY},1,1\n5,1,1\n", "line 3, TIMESTAMP: is a number of seconds, and the first one is a date"),
        (HEADING + f"{DAY},1,1\n{DAY}Z,1,1\n", "line 3, TIMESTAMP: is a date with a time zone"),
        (HEADING + "yesterday,1,1\n", "line 2, TIMESTAMP: is neither a date with time nor a number of seconds"),
        (HEADING + "nan,1,1\n", "line 2, TIMESTAMP: must be at most"),
        (HEADING + "1e300,1,1\n", "line 2, TIMESTAMP: must be at most"),
        (HEADING + '0,"1,1\n', "is no line of a CSV file"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as refusal:
        read_trace(path)
    assert str(refusal.value).startswith(str(path)) and says in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1


def test_damaged_files(tmp_path: Path) -> None:
    whole = gzip.compress((HEADING + "0,1,1\n").encode())
    for name, raw, says in [
        ("cut.csv.gz", whole[:-9], "is no whole gzip file"),
        ("plain.csv.gz", HEADING.encode(), "is no whole gzip file"),
        ("bits.csv.gz", whole[:12] + b"\xff\xff\xff" + whole[15:], "is no whole gzip file"),
        ("latin.csv", HEADING.encode() + b"0,1,1\n0,1,\xe9\n", "line 3: is not text in UTF-8"),
    ]:
        path = tmp_path / name
        path.write_bytes(raw)
        with pytest.raises(ConfigError, match=says):
            read_trace(path)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_trace(tmp_path)


@given(st.binary(max_size=200), st.booleans())
def test_anything_else_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, tail: bytes, zipped: bool) -> None:
    raw = HEADING.encode() + b"0,1,1\n" + tail
    path = tmp_path_factory.mktemp("any") / ("trace.csv.gz" if zipped else "trace.csv")
    path.write_bytes(gzip.compress(raw) if zipped else raw)
    _read_or_refuse(path)


_cell = st.one_of(st.integers().map(str), st.floats().map(str), st.datetimes().map(str), st.text(max_size=5))


@given(st.lists(st.tuples(_cell, _cell, _cell), max_size=6))
def test_rows_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]]) -> None:
    text = HEADING + "\n".join(map(",".join, rows))
    path = tmp_path_factory.mktemp("rows") / "trace.csv"
    path.write_text(text, encoding="utf-8", errors="replace", newline="")
    _read_or_refuse(path)


def _read_or_refuse(path: Path) -> None:
    try:
        arrivals = read_trace(path)
    except ConfigError as refusal:
        assert str(path) in str(refusal)
        return
    times = [arrival.time for arrival in arrivals]
    assert times == sorted(times) and times[0] == 0
