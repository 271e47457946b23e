"""IterationCost: what an iteration of a given shape takes, learnt from those that have returned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from orcaserve.core import BatchEntry, Phase

KEPT = 0.97  # of what was learnt, after one more iteration: some thirty iterations count
FAR = 4.0  # times longer or shorter than predicted: so much of it is believed at once, and no more
HEAVY = 1e100  # weight of an iteration, after which all weights are made smaller
PLAIN = 4  # of so many iterations without initiations one is learnt from: they are many, and alike
MOST_KEPT = 64  # iterations that may have returned before they are learnt from
WARM = 8  # iterations that are believed whatever they say

_INCREMENT = Phase.INCREMENT


@dataclass(slots=True)
class Shape:
    """The sizes of an iteration that its time depends on.

    n_increments: requests in their increment phase, each a token; context: tokens they attend to.
    n_fed: tokens of initiations; products: pairs of such a token and one that it attends to.
    """

    n_increments: int = 0
    context: int = 0
    n_fed: int = 0
    products: int = 0

    def add(self, n_tokens: int, position: int) -> None:
        """An initiation's piece."""
        self.n_fed += n_tokens
        self.products += n_tokens * position + n_tokens * (n_tokens + 1) // 2

    @classmethod
    def of(cls, entries: Sequence[BatchEntry]) -> Shape:
        positions = [entry.position for entry in entries if entry.phase is _INCREMENT]
        shape = cls(len(positions), sum(positions))
        if len(positions) < len(entries):
            for entry in entries:
                if entry.phase is not _INCREMENT:
                    shape.add(len(entry.tokens), entry.position)
        return shape

    def features(self) -> Sequence[float]:
        """In units such that each is about one in an iteration of a middling size."""
        return 1.0, self.n_increments / 16, self.n_fed / 256, self.context / 4096, self.products / 65536


class IterationCost:
    """A line: so much for an iteration, for an increment, for a token of its context, for an initiation's token, and
    for a pair of its attention; none of them below zero, so that more work is never predicted to take less time.

    Least squares of relative errors over what has returned, each iteration counting less with every later one. They are
    kept as sums (products of features with one another and with what was measured), of which coordinate descent finds
    the line, a step for each iteration, starting from the one before: no matrix is inverted, so none can become
    singular. An iteration that takes many times longer than predicted counts as one that took FAR times as long, so a
    pause of the machine moves the line a little, and a machine that has become slower moves it within some iterations.

    Times are whole microseconds, as a schedule log holds them: what is learnt from a log is what was learnt live.
    """

    def __init__(self) -> None:
        self._shares = [0.0] * 5  # microseconds for each feature
        self._sums = [[0.0] * 5 for _ in range(5)]
        self._targets = [0.0] * 5
        self._weight = 1.0  # of the iteration that was seen last: it grows, so that those before need no change
        self.n_seen = self._n_plain = 0
        self._most_fed = 0  # initiation tokens of the iteration that had most of them
        self._returned: list[tuple[Sequence[BatchEntry], float]] = []  # not learnt from yet, with their seconds
        self._n_due = 0  # of these, from the front

    @property
    def most_fed(self) -> int:
        """Initiation tokens of the iteration that had most of them."""
        self.catch_up()
        return self._most_fed

    def returned(self, entries: Sequence[BatchEntry], seconds: float) -> None:
        """An iteration is back. It is learnt from after the next `chosen`, so that nobody waits for it."""
        self._returned.append((entries, seconds))

    def chosen(self) -> None:
        """A batch was chosen by what has been learnt. What has returned by now is learnt from before the next question,
        or in `catch_up`, which makes no difference to any answer."""
        self._n_due = len(self._returned)
        if self._n_due >= MOST_KEPT:
            self.catch_up()

    def catch_up(self) -> None:
        """There is time to learn."""
        if self._n_due:
            due, self._returned = self._returned[: self._n_due], self._returned[self._n_due :]
            self._n_due = 0
            for entries, seconds in due:
                self.learn(Shape.of(entries), round(seconds * 1e6))

    def learn(self, shape: Shape, microseconds: int) -> None:
        if microseconds <= 0:  # nobody measured
            return
        if not shape.n_fed and self.n_seen >= WARM:
            self._n_plain += 1
            if self._n_plain % PLAIN:
                return
        took = float(microseconds)
        features = shape.features()
        if self.n_seen >= WARM and not shape.n_fed > self._most_fed:  # else there is nothing to compare with
            expected = self._predict(shape)
            if expected > 0:  # else all that it is made of has been found to take no time
                took = min(max(took, expected / FAR), expected * FAR)
        self.n_seen += 1
        self._most_fed = max(self._most_fed, shape.n_fed)
        weight = self._weight = self._weight / KEPT
        filled = [(i, feature / took) for i, feature in enumerate(features) if feature]
        for i, own in filled:
            weighted = weight * own
            self._targets[i] += weighted
            sums = self._sums[i]
            for j, other in filled:
                sums[j] += weighted * other
        if weight > HEAVY:
            self._lighten()
        self._descend()

    def predict(self, shape: Shape) -> float:
        """Microseconds; 0 as long as nothing has returned."""
        self.catch_up()
        return self._predict(shape)

    def _predict(self, shape: Shape) -> float:
        a, b, c, d, e = self._shares
        one, increments, fed, context, products = shape.features()
        return a * one + b * increments + c * fed + d * context + e * products

    def room(self, shape: Shape, position: int, microseconds: float) -> int:
        """How many tokens of an initiation, from a position on, an iteration of the shape can have beside, if it is to
        take at most so long. May be less than 0."""
        left = microseconds - self.predict(shape)
        each = self._shares[2] / 256 + self._shares[4] / 65536 * (position + 0.5)
        square = self._shares[4] / 65536 / 2  # left = each * n + square * n * n
        if left <= 0:
            return 0
        n = 2 * left / (each + sqrt(each * each + 4 * square * left)) if each + square > 0 else 1e9
        return int(min(n, 1e9))

    def _descend(self) -> None:
        """One step for each share, to where the error is least if the others stay, but not below zero."""
        shares = self._shares
        for i, (row, target) in enumerate(zip(self._sums, self._targets, strict=True)):
            own = row[i]
            if own > 0.0:
                a, b, c, d, e = shares
                off = target - (row[0] * a + row[1] * b + row[2] * c + row[3] * d + row[4] * e)
                share = shares[i] + off / own
                shares[i] = share if share > 0.0 else 0.0

    def _lighten(self) -> None:
        """The same with smaller numbers."""
        self._targets = [target / self._weight for target in self._targets]
        self._sums = [[value / self._weight for value in row] for row in self._sums]
        self._weight = 1.0
