"""Matchers: requests' ways through their grammars, and what may come next on each.

Everything that asks the grammar library while tokens are chosen is here; what is asked when is up to grammars.py.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orcaserve.core import Grammar, InvalidRequest, ModelError, SamplingParams
from orcaserve.worker.resources import available_cores

if TYPE_CHECKING:  # late: most workers never see a grammar
    from llguidance import LLExecutor, LLMatcher

    from orcaserve.text.compiler import Compiler
    from orcaserve.text.vocabulary import Vocabulary

MAX_COMPILED = 32  # grammars whose beginnings are kept
MAX_COMPILED_CHARACTERS = 2**18  # of their texts
MAX_THREADS = 8  # that compute masks
MOST_ALONE = 0.001  # s of masks for which one thread does: to wake more takes as long as the masks

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Followed:
    """A request's way through its grammar.

    to_enter: tokens that were put out and are not in the matcher yet. n_output: how many were put out.
    failure: why it cannot go on. mask: of the next token, if it is known and the request can go on. coming: it is being
    found out on the thread. tries: its tokens are chosen without a mask first.
    """

    grammar: Grammar
    params: SamplingParams
    stop_ids: frozenset[int]
    to_enter: list[int]
    n_output: int
    matcher: LLMatcher | None = None
    failure: str | None = None
    mask: NDArray[np.uint32] | None = None
    coming: Future[None] | None = None
    tries: bool = field(init=False)

    def __post_init__(self) -> None:
        params = self.params
        whole = params.greedy or (params.top_k <= 0 and params.top_p >= 1 and params.min_p <= 0)
        penalties = params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty
        self.tries = bool(whole and not penalties and not params.logit_bias)

    @property
    def is_ready(self) -> bool:
        """For the choice of its next token."""
        if self.failure is not None or self.mask is not None:
            return True
        return self.tries and self.matcher is not None and not self.to_enter

    def allows(self, token: int) -> bool:
        """By the mask, which is known."""
        assert self.mask is not None
        return bool(self.mask.item(token // 32) >> token % 32 & 1)

    def unwelcome(self, eos_ids: frozenset[int]) -> frozenset[int]:
        """Ids that end the text and are not to come next while there is another way on."""
        stops = self.stop_ids if self.n_output < self.params.min_tokens else frozenset[int]()
        return stops | eos_ids if self.params.ignore_eos else stops


class Matchers:
    """Everything with a matcher. Called by one thread at a time; it is begun with by one that may use all cores."""

    def __init__(self, read_vocabulary: Callable[[], Vocabulary]) -> None:
        self._read_vocabulary = read_vocabulary
        self._compiler: Compiler | None = None
        self._executors: dict[int, LLExecutor] = {}  # number of threads -> those
        self._seconds = 0.0  # of one thread for one mask, the last time
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()  # the one used last at the end

    def follow(self, followed: Sequence[Followed]) -> None:
        """Enter what was chosen, and set the failures of those that cannot go on, and the masks of those that need one
        in any case."""
        for one in followed:
            if one.matcher is None and one.failure is None:
                self._start(one)
        going = [one for one in followed if one.failure is None]
        if not going:
            return
        self._enter(going)
        self.fill([one for one in going if one.failure is None and not one.tries])

    def takes(self, one: Followed, token: int) -> bool:
        """Enters the token if it may come next; no, too, if that cannot be told but by a mask."""
        assert self._compiler is not None and one.matcher is not None
        if token in one.stop_ids or token in self._compiler.vocabulary.eos_ids:
            return False
        return one.matcher.try_consume_tokens([token]) == 1

    def fill(self, followed: Sequence[Followed]) -> None:
        """Set each one's mask of what may come next, or its failure."""
        if not followed:
            return
        assert self._compiler is not None
        vocabulary, eos = self._compiler.vocabulary, self._compiler.eos_id
        rows = np.empty((len(followed), -(-len(vocabulary.texts) // 32)), np.uint32)
        self._compute([one.matcher for one in followed], rows)
        if len(vocabulary.eos_ids) > 1:  # where the text may end, all ids that end it are allowed
            may_end = (rows[:, eos // 32] >> np.uint32(eos % 32)) & np.uint32(1)
            for other in vocabulary.eos_ids - {eos}:
                rows[:, other // 32] |= may_end << np.uint32(other % 32)
        for one, row in zip(followed, rows, strict=True):
            assert one.matcher is not None
            if one.matcher.is_error():
                self._fail(one)
                continue
            if unwelcome := one.unwelcome(vocabulary.eos_ids):
                _hold_back(row, unwelcome)
            one.mask = row

    def _start(self, one: Followed) -> None:
        try:
            one.matcher = self._begun(one.grammar).deep_copy()
        except InvalidRequest as error:
            one.failure = error.message
        except (ModelError, ValueError) as error:
            _log.warning("a grammar cannot be followed: %s", error)
            one.failure = "this model cannot follow grammars: it has no tokenizer, or no token that ends a text"

    def _begun(self, grammar: Grammar) -> LLMatcher:
        """Of this grammar, at its beginning."""
        if self._compiler is None:
            from llguidance import LLExecutor

            from orcaserve.text.compiler import Compiler

            self._compiler = Compiler(self._read_vocabulary())
            self._executors = {n: LLExecutor(n) for n in (1, min(available_cores(), MAX_THREADS))}
        known = self._compiled.pop(grammar, None)
        matcher = self._compiler.compile(grammar) if known is None else known
        self._compiled[grammar] = matcher
        while len(self._compiled) > MAX_COMPILED or sum(len(g.text) for g in self._compiled) > MAX_COMPILED_CHARACTERS:
            self._compiled.popitem(last=False)
        return matcher

    def _enter(self, followed: Sequence[Followed]) -> None:
        """The tokens that were chosen. One that ends a text is none of it."""
        assert self._compiler is not None
        eos_ids = self._compiler.vocabulary.eos_ids
        for one in followed:
            assert one.matcher is not None
            tokens = [token for token in one.to_enter if token not in eos_ids]
            one.to_enter.clear()
            if tokens and not one.matcher.consume_tokens(tokens):
                self._fail(one)

    def _fail(self, one: Followed) -> None:
        from orcaserve.text.compiler import failure_of

        assert one.matcher is not None
        one.failure = failure_of(one.matcher)

    def _compute(self, matchers: Sequence[Any], rows: NDArray[np.uint32]) -> None:
        """Masks, into rows [len(matchers), vocabulary / 32 rounded up]. The interpreter is given up once for all."""
        n, width = rows.shape
        indexed = [(matcher, row) for row, matcher in enumerate(matchers)]
        n_threads = 1 if n * self._seconds < MOST_ALONE else max(self._executors)
        started = time.perf_counter()
        self._executors[n_threads].unsafe_compute_mask_ptr(indexed, rows.ctypes.data, 4 * width, n)
        self._seconds = (time.perf_counter() - started) * n_threads / n


def _hold_back(row: NDArray[np.uint32], ids: frozenset[int]) -> None:
    """Exclude ids, unless there is nothing else."""
    held = [token for token in ids if token // 32 < len(row) and row.item(token // 32) >> token % 32 & 1]
    if not held:
        return
    kept = row.copy()
    for token in held:
        kept[token // 32] &= ~np.uint32(1 << token % 32)
    if kept.any():
        row[:] = kept
