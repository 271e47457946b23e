"""IterationCost: sane before, right after some iterations, never less for more work, and not thrown by a pause."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.core import BatchEntry, Increment, Phase, SamplingParams
from orcaserve.scheduler.iteration_cost import FAR, PLAIN, WARM, IterationCost, Shape

shapes = st.builds(
    lambda n, context, pieces: _shape(n, context, pieces),
    st.integers(0, 64),
    st.integers(0, 500),
    st.lists(st.tuples(st.integers(1, 800), st.integers(0, 2000)), max_size=3),
)


def _shape(n_increments: int, context: int, pieces: Sequence[tuple[int, int]]) -> Shape:
    shape = Shape(n_increments, n_increments * context)
    for n_tokens, position in pieces:
        shape.add(n_tokens, position)
    return shape


def truth(shape: Shape) -> float:
    """Microseconds of a machine."""
    return 4000 + 150 * shape.n_increments + 210 * shape.n_fed + 0.2 * shape.context + 0.05 * shape.products


def drawn(rng: random.Random) -> Shape:
    pieces = [(rng.randint(1, 300), rng.choice([0, 256]))] * rng.randint(0, 1)
    return _shape(rng.randint(0, 32), rng.randint(0, 400), pieces)


def taught(rng: random.Random) -> IterationCost:
    cost = IterationCost()
    for _ in range(300):
        shape = drawn(rng)
        cost.learn(shape, round(truth(shape) * rng.uniform(0.98, 1.02)))
    return cost


def test_of_a_batch() -> None:
    entries = [
        Increment(1, 7, 30),
        BatchEntry(2, Phase.INITIATION, [1, 2, 3], 0, SamplingParams()),
        BatchEntry(3, Phase.INITIATION, [1, 2], 10, n_to_come=4),
    ]
    assert Shape.of(entries) == Shape(1, 30, 5, 6 + 20 + 3)


def test_before_anything_has_returned() -> None:
    cost = IterationCost()
    assert cost.predict(Shape(10, 100, 1000, 10)) == 0.0
    cost.learn(Shape(1, 10), 0)
    assert cost.n_seen == 0, "nobody measured"


def test_it_learns_the_machine() -> None:
    rng = random.Random(1)
    cost = taught(rng)
    errors = sorted(abs(cost.predict(s) / truth(s) - 1) for s in (drawn(rng) for _ in range(200)))
    assert errors[100] < 0.05 and errors[190] < 0.2


def test_a_pause_moves_it_a_little_and_a_slower_machine_wholly() -> None:
    rng = random.Random(2)
    cost = taught(rng)
    usual = Shape(16, 3000)
    before = cost.predict(usual)
    for _ in range(PLAIN):
        cost.learn(usual, round(1000 * before))
    assert cost.predict(usual) < 1.5 * before
    for _ in range(300):
        shape = drawn(rng)
        cost.learn(shape, round(3 * truth(shape)))
    assert abs(cost.predict(usual) / (3 * truth(usual)) - 1) < 0.15


@given(
    learnt=st.lists(st.tuples(shapes, st.integers(0, 10_000_000)), max_size=40),
    shape=shapes,
    more=st.tuples(st.integers(0, 9), st.integers(0, 999), st.integers(0, 99), st.integers(0, 9999)),
    position=st.integers(0, 3000),
    microseconds=st.floats(0, 1e7),
)
def test_whatever_it_has_seen(
    learnt: Sequence[tuple[Shape, int]], shape: Shape, more: tuple[int, ...], position: int, microseconds: float
) -> None:
    """Never below zero, more work is never less time, and what there is room for is predicted to fit: no token more."""
    cost = IterationCost()
    for seen, took in learnt:
        cost.learn(seen, took)
    predicted = cost.predict(shape)
    sizes = (shape.n_increments, shape.context, shape.n_fed, shape.products)
    larger = Shape(*(size + extra for size, extra in zip(sizes, more, strict=True)))
    assert 0 <= predicted <= cost.predict(larger) * (1 + 1e-12)
    n = cost.room(shape, position, microseconds)
    assert 0 <= n <= 10**9
    if predicted <= microseconds and n < 10**8:
        for fed, fits in ((n, True), (n + 2, False)):
            filled = Shape(*sizes)
            filled.add(fed, position)
            took = cost.predict(filled)
            assert took <= microseconds * (1 + 1e-6) + 1e-6 if fits else took >= microseconds * (1 - 1e-6)


def test_what_is_far_off_counts_as_not_so_far() -> None:
    cost = IterationCost()
    other = IterationCost()
    for _ in range(40):
        cost.learn(Shape(8, 800), 10_000)
        other.learn(Shape(8, 800), 10_000)
    for _ in range(PLAIN):
        cost.learn(Shape(8, 800), 10_000_000)
        other.learn(Shape(8, 800), round(FAR * 10_000))
    assert abs(cost.predict(Shape(8, 800)) - other.predict(Shape(8, 800))) < 100


def test_what_seems_to_take_no_time_may_take_some() -> None:
    """All shares of a shape at zero: there is nothing to hold what was measured against, and nothing to divide by."""
    cost = IterationCost()
    for _ in range(WARM):
        cost.learn(Shape(0, 0, 100, 5050), 1_000)
    cost._shares = [0.0] * 5
    for _ in range(PLAIN):
        cost.learn(Shape(1, 1), 1_000)
    assert cost.predict(Shape(1, 1)) > 0


@pytest.mark.parametrize("prepares", [True, False])
def test_what_has_returned_is_learnt_after_the_next_choice(prepares: bool) -> None:
    """Whether there was time for it before somebody asked, or not."""
    cost, other = IterationCost(), IterationCost()
    entries = [BatchEntry(1, Phase.INITIATION, [1] * 9, 0, SamplingParams())]
    cost.returned(entries, 0.004)
    cost.catch_up()
    assert cost.predict(Shape.of(entries)) == 0, "the choice of the batch after it does not wait for it"
    cost.chosen()
    if prepares:
        cost.catch_up()
    other.learn(Shape.of(entries), 4000)
    assert cost.predict(Shape.of(entries)) == other.predict(Shape.of(entries)) > 0
    assert cost.most_fed == other.most_fed == 9
