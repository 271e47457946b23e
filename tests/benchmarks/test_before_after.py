"""Two sides take turns, and the median of neighbours' ratios decides."""

from __future__ import annotations

from typing import Any

import pytest
from before_after import WORKS, Pairs, measure


class Fake:
    """A side that notes whose turn it was; the machine is slower in every third round."""

    def __init__(self, name: str, seconds: float, turns: list[str]) -> None:
        self._name, self._seconds, self._turns = name, seconds, turns

    def seconds(self, work: Any) -> float:
        self._turns.append(self._name)
        return self._seconds * (3 if len(self._turns) // 2 % 3 == 0 else 1)


def test_sides_take_turns_and_change_places() -> None:
    turns: list[str] = []
    (pairs,) = measure(Fake("a", 1.0, turns), Fake("b", 1.0, turns), WORKS[:1], 3, 60)  # type: ignore[arg-type]
    assert "".join(turns) == "ab" + "ba" + "ab" + "ba", "the first round warms, and is not counted"
    assert len(pairs.before) == len(pairs.after) == 3


def test_two_rounds_are_made_however_late_it_is() -> None:
    sides = [Fake("x", 1.0, []) for _ in range(2)]
    pairs = measure(*sides, WORKS, 100, 0)  # type: ignore[arg-type]
    assert [len(each.before) for each in pairs] == [2] * len(WORKS)


@pytest.mark.parametrize(("after", "passes"), [([1.0, 9.0, 1.0], True), ([1.02] * 3, True), ([1.04, 1.0, 1.04], False)])
def test_the_median_ratio_decides(after: list[float], passes: bool) -> None:
    assert Pairs(WORKS[0], [1.0] * 3, after).passed is passes
