"""PartBackend: a part of the model on the CPU's own kernels, and its place on the data plane."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from orcaserve.config import EngineConfig
from orcaserve.core import CheckpointError, ConfigError, UnsupportedModel
from orcaserve.core.spans import COMPUTE, RECEIVE, SAMPLE, Span
from orcaserve.data_plane.protocol import DataPlane, Incoming, Place
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.parameter import Floats
from orcaserve.model.part import Part
from orcaserve.native import _kernels
from orcaserve.native.kv_region import PAGE_SIZE_STEP, KVRegion, slot_bytes
from orcaserve.native.model import NativeModel
from orcaserve.native.sampler import Sampler
from orcaserve.worker import backend
from orcaserve.worker.part_weights import begin_loading
from orcaserve.worker.plan import Plan
from orcaserve.worker.sampled_elsewhere import SampledElsewhere

_log = logging.getLogger(__name__)


class PartBackend:
    """A Backend whose iterations begin with hidden states of the stage before, or end with some for the next.

        expect(n)          when the control message comes, on its thread: the transfer begins while others are computed
        iterate(...)       as any Backend's; tokens mean something at the first shard of the last stage only
        settle()           after every iteration: an iteration none of whose entries could be run is passed on too

    Between stages travel as many rows as the control message has tokens, whatever entries could not be run: so sizes
    are known before.

    spans: what was done since somebody last cleared it.
    """

    def __init__(self, config: EngineConfig, plan: Plan, place: Place, n_threads: int) -> None:
        """Reads what it needs and nothing else. Raises ModelError, or ConfigError for settings that do not suit."""
        part = plan.part(place)
        self._page_size = config.kv.page_size
        if self._page_size % PAGE_SIZE_STEP:
            raise ConfigError("page_size", f"must be a multiple of {PAGE_SIZE_STEP} on a CPU")
        if part.spec.head_dim % 4:
            raise UnsupportedModel(f"heads of {part.spec.head_dim} dimensions are not supported, only multiples of 4")
        self.spec, self._part = part.spec, part
        self._name, self._team = config.model.path.name, _kernels.Team(n_threads)
        self._loading = begin_loading(config.model, plan, place, self._team, n_threads)
        precision = self._loading.precision.with_kv(config.kv.dtype)
        _log.info("layers %d to %d: %s", part.layers.start, part.layers.stop - 1, precision.text)
        self._storage = precision.kv
        self.slot_bytes = slot_bytes(part.own_spec, self._storage)
        self._samples = part.last and part.shard == 0
        self._sampler = Sampler(self._team) if self._samples else None
        self.sampler: backend.Sampler = self._sampler or SampledElsewhere()
        self._vocabularies = [
            len(Part(part.spec, part.layers, shard, part.n_shards).vocabulary) for shard in range(part.n_shards)
        ]
        self._expected: deque[tuple[int, Incoming | None]] = deque()  # rows of iterations to come, and their receives
        self._passed_on = False  # whether the iteration under way has been
        self.spans: list[Span] = []

    @property
    def progress(self) -> int:
        return self._team.progress

    def allocate(self, n_pages: int) -> None:
        self._kv = KVRegion(self._part.own_spec, n_pages, self._page_size, self._storage)

    def join(self, plane: DataPlane) -> None:
        """All workers at the same time: with the others, the weights are finished. Raises ModelError."""
        self._plane, part = plane, self._part
        weights = self._loading.finish(plane)
        try:
            reduce = self._all_reduce if part.n_shards > 1 else None
            self._model = NativeModel(self.spec, weights, self._team, part, reduce)
        except ValueError as error:
            raise CheckpointError(f"{self._name}: {error}") from error
        if plane.sums is not None:
            self._model.sum_by(plane.sums)

    def expect(self, n_rows: int) -> None:
        incoming = None if self._part.first else self._plane.receive(n_rows, self.spec.hidden_size)
        self._expected.append((n_rows, incoming))

    def iterate(
        self, token_ids: Int32s, layout: Layout, request_ids: Sequence[int], rows: Sequence[int] | None = None
    ) -> tuple[Sequence[int], dict[int, str]]:
        received, n_rows = self._receive()
        inputs = token_ids if received is None else received[: len(token_ids)]
        started = time.monotonic_ns()
        out = self._model.forward(inputs, layout, self._kv)
        ended = time.monotonic_ns()
        self.spans.append(Span(COMPUTE, started, ended))
        if not self._part.last:
            self._send(out if received is None else received, n_rows)
            return [0] * len(request_ids), {}
        self._passed_on = True
        logits = self._plane.gather(out, self._vocabularies) if self._part.n_shards > 1 else out
        if logits is None or self._sampler is None:
            return [0] * len(request_ids), {}
        if rows is not None:
            logits = logits[rows]
        chosen = self._sampler.sample(logits, request_ids) if request_ids else ([], {})
        self.spans.append(Span(SAMPLE, ended, time.monotonic_ns()))
        return chosen

    def settle(self) -> None:
        if not self._passed_on:
            received, n_rows = self._receive()
            if not self._part.last:
                self._send(received if received is not None else self._rows(0), n_rows)
        self._passed_on = False

    def _receive(self) -> tuple[Floats | None, int]:
        n_rows, incoming = self._expected.popleft()
        if incoming is None:
            return None, n_rows
        started = time.monotonic_ns()
        received = incoming.wait()
        self.spans.append(Span(RECEIVE, started, time.monotonic_ns()))
        return received, n_rows

    def _send(self, rows: Floats, n_rows: int) -> None:
        if len(rows) < n_rows:
            rows = np.concatenate([rows, self._rows(n_rows - len(rows))])
        self._plane.send(rows)
        self._passed_on = True

    def _rows(self, n: int) -> Floats:
        return np.zeros((n, self.spec.hidden_size), np.float32)

    def _all_reduce(self, x: Floats, n_next: int) -> None:
        self._plane.all_reduce(x, n_next)
