"""What is wrong with a log is said in one line: file, line, field."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.core import ConfigError
from orcaserve.schedule_log.format import as_runs, from_runs
from orcaserve.schedule_log.reader import read_log
from orcaserve.schedule_log.rotating_file import RotatingFile

HEADER = {
    "kind": "orcaserve-schedule",
    "version": 1,
    "run": "1",
    "part": 1,
    "start": 1.5,
    "settings": {
        "policy": "iteration-level",
        "max_bs": 4,
        "n_slots": 64,
        "page_size": 16,
        "n_workers": 1,
        "longest": 64,
        "microbatch_size": None,
        "shortest_first": True,
        "model": "m",
    },
}
GOOD = [
    '["a",0,1,3,2]',
    '["b",1,1,"",[[1,3]],16,0]',
    '["r",9,1,7]',
    '["b",10,2,"=",[],16,3]',
    '["r",12,2,2,[[1,"length",2]]]',
]


def log(folder: Path, lines: Sequence[str], **header: object) -> Path:
    path = folder / "x.log"
    path.write_text("\n".join([json.dumps(HEADER | header), *lines, ""]))
    return path


def test_the_good_one(tmp_path: Path) -> None:
    found = read_log(log(tmp_path, GOOD))
    assert len(found.events) == len(GOOD) and not found.cut


@pytest.mark.parametrize(
    ("at", "line", "what"),
    [
        (0, "{", "line 2: is not JSON"),
        (0, '["q",0]', r"line 2: field 1 must be one of a, x, c, d, b, r, z"),
        (0, "7", "line 2: field 1"),
        (0, '["a",0,1,0,2]', r"line 2: field 4 \(input\) must be a whole number, 1 or more"),
        (0, '["a",0,1,3,-2]', r"line 2: field 5 \(asked\)"),
        (0, '["a",0,true,3,2]', r"line 2: field 3 \(id\)"),
        (0, '["a",0.5,1,3,2]', r"line 2: field 2 \(time\)"),
        (0, '["a",0,1,3,2,2]', r"line 2: field 6 \(carried\) must be less"),
        (0, '["a",0,1,3,2,0,0,9]', r"line 2: field 8 \(terms\) must be an object of client, weight"),
        (0, '["a",0,1,3,2,0,0,{"who":1}]', r"line 2: field 8 \(terms\) must be an object of client, weight"),
        (0, '["a",0,1,3,2,0,0,{"client":"key"}]', r"line 2: field 8 \(terms\) have a wrong client"),
        (0, '["a",0,1,3,2,0,0,{"weight":0}]', r"line 2: field 8 \(terms\) are wrong: a client's weight must"),
        (0, '["a",0,1,3,2,0,0,{},9]', r"line 2: field 9 \(beyond the last\)"),
        (3, '["d",2,[[1,"gone",2]]]', r"line 5: field 3 \(ends\) must not hold the reason 'gone'"),
        (0, '["a",0]', r"line 2: field 3 \(id\)"),
        (1, '["a",0,1,3,2]', r"line 3: field 3 \(id\) names request 1, which is there already"),
        (1, '["b",1,1,"",[[7,3]],16,0]', r"line 3: field 5 \(initiations\) names request 7, which is not there"),
        (1, '["b",1,1,"1-x",[],16,0]', r"line 3: field 4 \(increments\) '1-x' is no list"),
        (1, '["b",1,1,"1-99999999999",[],16,0]', r"line 3: field 4 \(increments\)"),
        (1, '["b",1,1,3,[],16,0]', r"line 3: field 4 \(increments\)"),
        (1, '["b",1,1,"",[],16,0]', r"line 3: field 4 \(increments\) and initiations must be of one"),
        (
            1,
            '["b",1,1,"1",[[1,3]],16,0]',
            r"line 3: field 4 \(increments\) and initiations must be of one request each",
        ),
        (1, '["b",1,1,"",[[1]],16,0]', r"line 3: field 5 \(initiations\) must hold"),
        (1, '["b",1,1,"",[[1,3]],16]', r"line 3: field 7 \(used\)"),
        (1, '["b",1,1,"",[[1,3]],16,0,"why"]', r"line 3: field 8 \(stop\) 'why' is no reason"),
        (1, '["b",1,1,"",[[1,3]],16,0,"full",0,[9]]', r"line 3: field 10 \(preempted\) names request 9"),
        (2, '["r",9,3,7]', r"line 4: field 3 \(iteration\) 3 is not in flight"),
        (2, '["r",9,1,"x"]', r"line 4: field 4 \(took\)"),
        (2, '["r",9,1,7,[[1,"done",2]]]', r"line 4: field 5 \(ends\) must not hold the reason 'done'"),
        (2, '["r",9,1,7,[[2,"stop",2]]]', r"line 4: field 5 \(ends\) names request 2"),
        (2, '["r",9,1,7,[1]]', r"line 4: field 5 \(ends\) must hold lists"),
        (3, '["b",10,3,"=",[],16,3]', r"line 5: field 3 \(iteration\) is 3, and 2 is due: a line is missing"),
        (3, '["x",1,2,3]', r"line 5: field 4 \(why\)"),
        (3, '["c",1,2,{}]', r"line 5: field 4 \(ends\) must be a list"),
    ],
)
def test_a_damaged_line(tmp_path: Path, at: int, line: str, what: str) -> None:
    lines = list(GOOD)
    lines[at] = line
    with pytest.raises(ConfigError, match=rf"x\.log: {what}"):
        read_log(log(tmp_path, lines))


@pytest.mark.parametrize(
    ("header", "what"),
    [
        ({"kind": "other"}, "kind is not 'orcaserve-schedule': this is no schedule log"),
        ({"version": 2}, "version is 2, and this reads 1"),
        ({"part": 0}, "part must be a whole number, 1 or more"),
        ({"start": "now"}, "start must be seconds"),
        ({"settings": []}, "settings must be an object"),
        ({"settings": HEADER["settings"] | {"policy": "fair"}}, r"settings\.policy must be one of iteration-level"),  # type: ignore[operator]
        ({"settings": HEADER["settings"] | {"max_bs": 0}}, r"settings\.max_bs must be a whole number"),  # type: ignore[operator]
        ({"settings": HEADER["settings"] | {"sources": 1}}, r"settings\.sources must be true or false"),  # type: ignore[operator]
        ({"live": [[1]]}, "live must hold lists of 6"),
        ({"in_flight": 3}, "in_flight must hold"),
        ({"last": [None]}, "last must hold"),
    ],
)
def test_a_damaged_header(tmp_path: Path, header: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError, match=rf"x\.log: line 1: {what}"):
        read_log(log(tmp_path, GOOD, **header))


@pytest.mark.parametrize("text", ["", "{}", '{"kind":"orcaserve-schedule"', "\x00\x01\n", "[]\n"])
def test_no_log_at_all(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.log"
    path.write_text(text)
    with pytest.raises(ConfigError, match="line 1: "):
        read_log(path)


@given(st.data())
def test_whatever_is_damaged_raises_nothing_else(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = log(tmp_path_factory.getbasetemp(), GOOD)
    text = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.sampled_from(b'019"[]{},-a\n\xff'))
    path.write_bytes(text)
    try:
        read_log(path)
    except ConfigError as error:
        assert "line " in str(error)


@given(st.lists(st.integers(0, 50)))
def test_runs(ids: list[int]) -> None:
    assert from_runs(as_runs(ids)) == ids


def test_runs_are_short() -> None:
    assert as_runs([3, 4, 5, 9, 11, 12]) == "3-5 9 11-12"


def test_a_full_disk_loses_the_log_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "x.log"
    path.symlink_to("/dev/full")
    file = RotatingFile(path, 3)
    for _ in range(100):
        file.write(b"line\n")
    file.close()
    file.write(b"after the end\n")
    assert [record.message for record in caplog.records] == [
        f"the schedule log {path} ends here: No space left on device; requests go on"
    ]


def test_a_disk_that_does_not_take_it_holds_nobody_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # who never reads
    file = RotatingFile(path, 3)
    for _ in range(40):
        file.write(bytes(2**20))
    assert "too slow" in caplog.text
    os.close(reader)
    file.close()


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("chapter 1")
    with pytest.raises(ConfigError, match=r"--schedule-log: .*is there already, and is no schedule log"):
        RotatingFile(path, 2)
    assert path.read_text() == "chapter 1"
    with pytest.raises(ConfigError, match=r"--schedule-log: .*No such file"):
        RotatingFile(tmp_path / "no" / "x.log", 2)
