"""Lines of the table of goals from rows, and shares of the limits."""

from __future__ import annotations

import sys

import pytest
from machine_limits import Limits
from peers import DECODE, OURS, VLLM, Goal, Share, judge
from throughputs import Results, Subject

LIMITS = Limits(2, {"float32": 300.0, "bfloat16": None, "int8": 1600.0}, {100_000_000: 40.0, 500_000_000: 30.0})


def results(*rows: tuple[Subject, float]) -> Results:
    found = Results()
    for subject, speed in rows:
        found.rows[subject, 1, 128].append({"decode_tok_s": speed, "prefill_tok_s": 1.0})
    return found


GOAL = Goal("decode", 3, "int8", 1, 128, DECODE)
OPENVINO, LLAMA = Subject("openvino", "Q4_0"), Subject("llama.cpp", "Q4_0")


def test_a_goal_is_held_against_the_best_of_the_others() -> None:
    line = judge(GOAL, results((OURS["int8"], 310.0), (OPENVINO, 100.0), (LLAMA, 90.0), (OURS["float32"], 999.0)))
    assert (line.passed, line.ratio, line.best) == (True, "3.10 x", "100 (openvino Q4_0)")
    assert judge(GOAL, results((OURS["int8"], 290.0), (OPENVINO, 100.0))).passed is False


def test_the_median_of_ours_counts() -> None:
    line = judge(GOAL, results(*((OURS["int8"], speed) for speed in (290.0, 310.0, 900.0)), (OPENVINO, 100.0)))
    assert line.ratio == "3.10 x"


def test_a_goal_against_one_engine_alone() -> None:
    goal = Goal("float32", 3, "float32", 1, 128, DECODE, VLLM)
    assert judge(goal, results((OURS["float32"], 310.0), (VLLM, 100.0), (OPENVINO, 500.0))).passed is True
    assert judge(goal, results((OURS["float32"], 310.0), (OPENVINO, 500.0))).passed is None


def test_without_ours_or_others_nothing_is_claimed() -> None:
    assert judge(GOAL, results((OURS["int8"], 310.0))).passed is None
    assert judge(GOAL, results((OPENVINO, 310.0))).passed is None


def test_shares_of_the_limits() -> None:
    share = Share(OURS["int8"], 120_000_000, 268_000_000, {1: 200.0, 32: 3000.0})
    assert share.bandwidth(LIMITS) == pytest.approx(0.12 * 200 / 40)
    assert share.arithmetic(LIMITS) == pytest.approx(0.268 * 3000 / 1600)
    assert Share(VLLM, 270_000_000, 268_000_000, {32: 150.0}).bandwidth(LIMITS) is None


def test_limits_are_what_was_seen_once() -> None:
    other = Limits(2, {"float32": 280.0, "bfloat16": None, "int8": 1700.0}, {100_000_000: 41.0, 500_000_000: 29.0})
    both = LIMITS.better_of(other)
    assert both.operations == {"float32": 300.0, "bfloat16": None, "int8": 1700.0}
    assert both.reads == {100_000_000: 41.0, 500_000_000: 30.0}
    assert both.arithmetic("bfloat16") == 300.0, "bfloat16 weights may be multiplied as float32"


def test_a_run_that_fails_is_named_and_does_not_stop_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    found = Results()
    found.run([sys.executable, "-c", "import sys; sys.exit('no such model')"])
    found.run([sys.executable, "-c", 'print(\'{"engine": "e", "form": "f", "batch": 1, "prompt": 2}\')'])
    capsys.readouterr()
    assert len(found.failures) == 1 and "no such model" in found.failures[0]
    assert found.subjects == [Subject("e", "f")]
