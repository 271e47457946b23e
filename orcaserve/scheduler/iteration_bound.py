"""IterationBound: how much of the initiations an iteration may have."""

from __future__ import annotations

from collections.abc import Callable

from orcaserve.scheduler.iteration_cost import IterationCost, Shape

LEAST = 32  # tokens that whoever is first is given in every iteration, whatever they take
UNSEEN = 64  # tokens of initiations in an iteration before any was measured
GROWTH = 2  # times as many as were ever measured: further, a line is not trusted


class IterationBound:
    """n_tokens: most input tokens of an iteration. seconds: that it is to take, as far as `cost` can tell. None: any.

    Increments are counted and never refused. What is left is granted to initiations one after the other. Whoever is
    first is granted LEAST tokens even if the iteration will take too long for it (as far as n_tokens allows), so that a
    target which cannot be met stops nobody.
    """

    def __init__(self, n_tokens: int | None, seconds: float | None, cost: IterationCost) -> None:
        self._n_tokens = n_tokens
        self._microseconds = None if seconds is None else seconds * 1e6
        self._cost = cost
        self._n_left = 0
        self._n_increments = 0
        self._context: Callable[[], int] = int
        self._shape: Shape | None = None  # of the iteration, if it is timed and somebody has been granted anything
        self._closed = False

    @property
    def is_timed(self) -> bool:
        """Whether it has to know the context of increments."""
        return self._microseconds is not None

    def open(self, n_increments: int, context: Callable[[], int]) -> None:
        """Another iteration, which has these increments already. context: what they attend to; most iterations have no
        initiation, and never ask."""
        self._n_increments, self._context, self._shape = n_increments, context, None
        self._n_left = 2**62 if self._n_tokens is None else self._n_tokens - n_increments
        self._closed = self._n_left <= 0

    @property
    def reached(self) -> bool:
        """Nothing more is granted in this iteration."""
        return self._closed or (self._shape is not None and self._room(0) <= 0)

    def grant(self, n: int, position: int) -> int:
        """Of the n tokens that an initiation wants, from a position on: how many it is given, at most once each. The
        bound is reached if it is not all of them."""
        given = self._given(n, position)
        if self._microseconds is not None:
            self._so_far().add(given, position)
        self._n_left -= given
        self._closed = given < n or self._n_left <= 0
        return given

    def _given(self, n: int, position: int) -> int:
        given = min(n, self._n_left)
        return given if self._microseconds is None else min(given, self._in_time(position))

    def _in_time(self, position: int) -> int:
        """1 at least: the bound would be reached if not even a token at position 0 were left."""
        return max(self._room(position), 1 if self._so_far().n_fed else LEAST)

    def _room(self, position: int) -> int:
        assert self._microseconds is not None
        cost, shape = self._cost, self._so_far()
        return min(cost.room(shape, position, self._microseconds), max(UNSEEN, GROWTH * cost.most_fed) - shape.n_fed)

    def _so_far(self) -> Shape:
        if self._shape is None:
            self._shape = Shape(self._n_increments, self._context())
        return self._shape


class WholeInitiations(IterationBound):
    """As IterationBound, where an initiation cannot be fed in pieces: an encoder reads a text as a whole. Whoever is
    granted anything is granted all of it, and the bound is reached behind the one that goes past it."""

    def _given(self, n: int, position: int) -> int:
        return n
