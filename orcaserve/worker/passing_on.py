"""PassesOn: an iteration of a part, from the hidden states of the stage before to those for the next, or to tokens.

Backends that run parts differ in what computes and in what travels; what is done in which order is here.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from orcaserve.core.spans import COMPUTE, RECEIVE, SAMPLE, Span
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.parameter import Floats
from orcaserve.model.part import share
from orcaserve.worker import backend
from orcaserve.worker.backend import Outcome
from orcaserve.worker.grammars import ConstrainedSampler, vocabulary_of
from orcaserve.worker.plan import PartT
from orcaserve.worker.pooling import fill
from orcaserve.worker.sampled_elsewhere import SampledElsewhere
from orcaserve.worker.scoring import NOTHING, Wanted, choose, joined, score_prompts

Rows = TypeVar("Rows")  # an array or a tensor of rows


class PassesOn(ABC, Generic[Rows, PartT]):
    """The part of RunsPart (see parts.py) that all backends share.

    Between stages travel as many rows as the control message has tokens, whatever entries could not be run: so sizes
    are known before.

    spans: what was done since somebody last cleared it.
    """

    def __init__(self, part: PartT, path: Path) -> None:
        """path: of the model, whose tokenizer says what grammars allow."""
        self.spec, self._part = part.spec, part
        self._sampler: ConstrainedSampler[Any] | None = None
        if part.last and part.shard == 0:
            self._sampler = ConstrainedSampler(self._make_sampler(), vocabulary_of(path, part.spec))
        self.sampler: backend.Sampler = self._sampler or SampledElsewhere()
        self._plane: Any = None  # a DataPlane of these rows
        self._vocabularies = [len(share(part.spec.vocab_size, r, part.n_shards)) for r in range(part.n_shards)]
        self._expected: deque[tuple[int, Any]] = deque()  # rows of iterations to come, and their receives
        self._passed_on = False  # whether the iteration under way has been
        self.spans: list[Span] = []

    @abstractmethod
    def _make_sampler(self) -> Any:
        """Of the worker that chooses tokens."""

    @abstractmethod
    def _compute(self, token_ids: Int32s, received: Rows | None, layout: Layout) -> Rows:
        """received: as many rows as token_ids has; None at the first stage. It may be written over."""

    @abstractmethod
    def _compute_and_keep(self, token_ids: Int32s, received: Rows | None, layout: Layout) -> tuple[Rows, Rows]:
        """As `_compute`, at the last stage: also the hidden states after the last layer, of all rows."""

    @abstractmethod
    def _head(self, states: Rows, rows: Int32s) -> Rows:
        """Logits, of its own vocabulary, of some of these rows."""

    @abstractmethod
    def _normed(self, states: Rows, rows: Int32s) -> Floats:
        """Some of these rows after the last norm."""

    @abstractmethod
    def _zeros(self, n: int) -> Rows: ...

    @abstractmethod
    def _joined(self, first: Rows, second: Rows) -> Rows: ...

    def _now(self) -> int:
        """Nanoseconds, when what was computed is there."""
        return time.monotonic_ns()

    def expect(self, n_rows: int) -> None:
        incoming = None if self._part.first else self._plane.receive(n_rows, self.spec.hidden_size)
        self._expected.append((n_rows, incoming))

    def iterate(
        self,
        token_ids: Int32s,
        layout: Layout,
        request_ids: Sequence[int],
        rows: Sequence[int] | None = None,
        wanted: Wanted = NOTHING,
    ) -> Outcome:
        if self._sampler is not None:
            self._sampler.begin(request_ids)
        received, n_rows = self._receive()
        started = time.monotonic_ns()
        inputs: Any = None if received is None else received[: len(token_ids)]
        out: Any
        if keeps := wanted.of_states and self._part.last:
            out, states = self._compute_and_keep(token_ids, inputs, layout)
        else:
            out = self._compute(token_ids, inputs, layout)
        ended = self._now()
        self.spans.append(Span(COMPUTE, started, ended))
        if not self._part.last:
            self._send(out, n_rows)
            return [0] * len(request_ids), {}, {}
        self._passed_on = True
        logits = self._gather(out)
        chosen: Any = [0] * len(request_ids), {}, {}
        if logits is not None and self._sampler is not None:
            chosen = choose(self._sampler, logits if rows is None else logits[rows], request_ids, wanted)
        if keeps:
            if wanted.pooled and self._sampler is not None:
                fill(wanted.pooled, self.spec.hidden_size, lambda rows: self._normed(states, rows))
            logits_of = lambda rows: self._gather(self._head(states, rows))  # noqa: E731
            chosen = joined(chosen, score_prompts(wanted.prompts, self.spec.vocab_size, logits_of, self._sampler))
        if self._sampler is not None:
            self.spans.append(Span(SAMPLE, ended, time.monotonic_ns()))
        outcome: Outcome = chosen
        return outcome

    def _gather(self, own: Any) -> Any:
        """Logits of the whole vocabulary, at the first shard; None elsewhere."""
        return self._plane.gather(own, self._vocabularies) if self._part.n_shards > 1 else own

    def settle(self) -> None:
        if not self._passed_on:
            received, n_rows = self._receive()
            if not self._part.last:
                self._send(self._zeros(0) if received is None else received, n_rows)
        self._passed_on = False

    def _receive(self) -> tuple[Any, int]:
        n_rows, incoming = self._expected.popleft()
        if incoming is None:
            return None, n_rows
        started = time.monotonic_ns()
        received = incoming.wait()
        self.spans.append(Span(RECEIVE, started, time.monotonic_ns()))
        return received, n_rows

    def _send(self, rows: Any, n_rows: int) -> None:
        if len(rows) < n_rows:
            rows = self._joined(rows, self._zeros(n_rows - len(rows)))
        self._plane.send(rows)
        self._passed_on = True
