"""One request's life in words, from a log written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orcaserve.cli.main import main
from orcaserve.core import ConfigError
from orcaserve.schedule_log.explain import overview, tell
from orcaserve.schedule_log.reader import read_log

HEADER = {
    "kind": "orcaserve-schedule",
    "version": 1,
    "run": "1",
    "part": 1,
    "start": 1796083200.0,
    "settings": {
        "policy": "iteration-level",
        "max_bs": 3,
        "n_slots": 4096,
        "page_size": 16,
        "n_workers": 1,
        "longest": 2048,
        "microbatch_size": None,
        "shortest_first": True,
        "model": "SmolLM2",
    },
}
# 1 and 2 run; 3 waits for a place, then for slots, then starts; 4 is long and delays it; 2 leaves.
LINES = """
["a",0,1,10,3]
["a",0,2,10,90]
["b",1000,1,"",[[1,10],[2,10]],128,0]
["a",3000,3,100,4]
["r",11000,1,10000]
["b",11000,2,"=",[],128,20,"full"]
["r",21000,2,10000]
["b",21000,3,"=",[],128,22,"slots",48]
["r",31000,3,10000,[[1,"length",3]]]
["b",31000,4,"=",[[3,100]],240,12]
["a",35000,4,1500,8]
["r",51000,4,20000]
["b",51000,5,"=",[[4,1500]],1760,113]
["x",60000,5,"5000 input tokens + max_tokens 1 need 5008 K/V slots, but there are 4096"]
["r",251000,5,200000]
["c",252000,2]
["b",252000,6,"2-4",[],1760,1614]
["r",262000,6,10000,[[2,"cancelled",5]]]
["b",262000,7,"3-4",[],1600,1600]
["r",272000,7,10000,[[3,"length",4]]]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_text(json.dumps(HEADER) + LINES)
    return path


def test_one_that_waited_and_was_delayed(path: Path) -> None:
    assert tell(read_log(path), 3).splitlines() == [
        "request 3 in run.log (SmolLM2, iteration-level, max_bs 3, 4,096 slots)",
        "",
        "arrived      at 00:00:00.003 UTC, 3.0 ms after the start, with 100 input tokens, for at most 4 output tokens; "
        "2 requests were there, 2 of them had begun",
        "waited       28.0 ms for its first iteration: "
        "8.0 ms because all workers had a batch, or it had only just come; "
        "10.0 ms through 1 iteration because the batch was full; "
        "10.0 ms through 1 iteration because slots were lacking (up to 48 for the next one)",
        "initiation   iteration 4, 100 tokens, beside 1 increment; it took 20.0 ms",
        "first token  48.0 ms after its arrival",
        "tokens       4; usually 11.0 ms between two, at most 0.20 s",
        "delays       0.19 s in 1 iteration that took longer because others began in it",
        "             iteration 5: 0.20 s instead of 10.0 ms, with request 4 (1,500 tokens)",
        "ended        0.27 s after its arrival, with all the tokens it asked for, 67.2 ms for each of its 4 tokens",
    ]


def test_the_others(path: Path) -> None:
    log = read_log(path)
    first = tell(log, 1)
    assert "nobody else was there" in first
    assert (
        "initiation   iteration 1, 10 tokens, beside 0 increments and the initiation of request 2 (10 tokens)" in first
    )
    left = tell(log, 2)
    assert "cancelled    0.25 s after its arrival" in left and "because its client left" in left
    assert "ended        not before the log ends" in tell(log, 4)
    assert tell(log, 5).startswith("request 5 was refused at 00:00:00.060 UTC")


def test_nobody_of_that_number(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"REQUEST: 17 is not in run\.log, which knows requests 1 to 4"):
        tell(read_log(path), 17)


def test_the_slowest(path: Path) -> None:
    lines = overview(read_log(path), 2).splitlines()
    assert len(lines) == 3
    assert lines[1].split() == ["3", "0.003", "100", "4", "0.028", "0.269", "67.2"]
    assert [line.split()[0] for line in lines[1:]] == ["3", "2"]


def test_request_level_holds_back(tmp_path: Path) -> None:
    header = HEADER | {"settings": HEADER["settings"] | {"policy": "request-level"}}  # type: ignore[operator]
    lines = """
["a",0,1,2,1]
["a",0,2,4,1]
["b",0,1,"",[[1,2],[2,2,2]],4096,0]
["r",10000,1,10000]
["b",10000,2,"1",[[2,1,1]],4096,4]
["r",20000,2,10000]
["b",20000,3,"1",[[2,1]],4096,6]
["r",30000,3,10000,[[1,"length",1],[2,"stop",1]]]
"""
    path = tmp_path / "run.log"
    path.write_text(json.dumps(header) + lines)
    one, two = (tell(read_log(path), i) for i in (1, 2))
    assert "held back    through 2 more iterations, until all of its batch had ended" in one
    assert "2 tokens, beside 1 increment" not in two and "2 more tokens came in later iterations" in two
    assert "held back" not in two and "with a stop token" in two


def test_a_preempted_one(tmp_path: Path) -> None:
    header = HEADER | {"settings": HEADER["settings"] | {"policy": "overcommit"}}  # type: ignore[operator]
    lines = """
["a",0,1,2,9]
["a",0,2,2,9]
["b",0,1,"",[[1,2],[2,2]],32,0]
["r",10000,1,10000]
["b",10000,2,"1",[],32,2,"slots",16,[2]]
["r",20000,2,10000,[[1,"stop",2]]]
["b",20000,3,"",[[2,3]],16,0]
["r",30000,3,10000,[[2,"stop",2]]]
"""
    path = tmp_path / "run.log"
    path.write_text(json.dumps(header) + lines)
    told = next(line for line in tell(read_log(path), 2).splitlines() if line.startswith("preempted"))
    assert told.split(maxsplit=1)[1] == (
        "before iteration 2, because an earlier request needed its slots, "
        "and started anew in iteration 3, with 3 tokens"
    )


def test_on_the_command_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(path), "3"]) == 0
    assert capsys.readouterr().out.startswith("request 3 in run.log")
    assert main(["explain", str(path)]) == 0
    assert main(["explain", str(path), "17"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["explain", str(path.parent / "no.log"), "1"]) == 1
    assert "No such file" in capsys.readouterr().err
    path.write_text(path.read_text() + '["r",2720')
    assert main(["explain", str(path), "3"]) == 0
    assert "the last line is cut short" in capsys.readouterr().err
