"""PartBackend: a part of the model on the CPU's own kernels, and its place on the data plane."""

from __future__ import annotations

import logging

import numpy as np

from orcaserve.config import EngineConfig
from orcaserve.core import CheckpointError, ConfigError
from orcaserve.data_plane.protocol import DataPlane, Place
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.parameter import Floats
from orcaserve.model.part import Part
from orcaserve.native import _kernels
from orcaserve.native.kv_region import PAGE_SIZE_STEP, KVRegion, slot_bytes
from orcaserve.native.model import NativeModel
from orcaserve.native.sampler import Sampler
from orcaserve.native.support import check_supported
from orcaserve.worker.among import Among
from orcaserve.worker.decoder import OfDecoder
from orcaserve.worker.part_weights import begin_loading
from orcaserve.worker.passing_on import PassesOn
from orcaserve.worker.plan import Plan

_log = logging.getLogger(__name__)


class PartBackend(OfDecoder, PassesOn[Floats, Part]):
    """A RunsPart (see parts.py) in whose iterations numpy arrays travel."""

    def __init__(self, config: EngineConfig, plan: Plan, place: Place, n_threads: int, among: Among) -> None:
        """Reads what it needs and nothing else. Raises ModelError, or ConfigError for settings that do not suit."""
        part = plan.part(place)
        self._page_size = config.kv.page_size
        if self._page_size % PAGE_SIZE_STEP:
            raise ConfigError("page_size", f"must be a multiple of {PAGE_SIZE_STEP} on a CPU")
        check_supported(part.spec)
        self._name, self._team, self._among = config.model.path.name, _kernels.Team(n_threads), among
        super().__init__(part, config.model.path)
        self._loading = begin_loading(config.model, plan, place, self._team, n_threads)
        precision = self._loading.precision.with_kv(config.kv.dtype)
        _log.info("layers %d to %d: %s", part.layers.start, part.layers.stop - 1, precision.text)
        self._storage = precision.kv
        self.slot_bytes = slot_bytes(part.own_spec, self._storage)

    @property
    def progress(self) -> int:
        return self._team.progress

    def allocate(self, n_pages: int) -> None:
        self._kv = KVRegion(self._part.own_spec, n_pages, self._page_size, self._storage)

    @property
    def part(self) -> Part:
        return self._part

    def join(self, plane: DataPlane) -> None:
        """All workers at the same time: with the others, the weights are finished. Raises ModelError."""
        self._plane, part = plane, self._part
        weights = self._loading.finish(plane)
        try:
            reduce = self._all_reduce if part.n_shards > 1 else None
            self._model = NativeModel(part.spec, weights, self._team, part, reduce)
        except ValueError as error:
            raise CheckpointError(f"{self._name}: {error}") from error
        if plane.sums is not None:
            self._model.sum_by(plane.sums)
        # Now: threads that somebody begins on this one, as the data plane does, would have to stay on its core.
        n_threads = self._team.n_threads
        self._team.take_cores(self._among.index * n_threads, self._among.n_workers * n_threads)

    def _make_sampler(self) -> Sampler:
        return Sampler(self._team)

    def _compute(self, token_ids: Int32s, received: Floats | None, layout: Layout) -> Floats:
        return self._model.forward(token_ids if received is None else received, layout, self._kv)

    def _compute_and_keep(self, token_ids: Int32s, received: Floats | None, layout: Layout) -> tuple[Floats, Floats]:
        if received is not None:
            return self._model.forward(received, layout, self._kv), received
        states = self._model.room_for(layout)
        return self._model.forward(token_ids, layout, self._kv, states=states), states

    def _head(self, states: Floats, rows: Int32s) -> Floats:
        return self._model.head(states[rows], self._kv)

    def _normed(self, states: Floats, rows: Int32s) -> Floats:
        return self._model.normed(states[rows])

    def _zeros(self, n: int) -> Floats:
        return np.zeros((n, self.spec.hidden_size), np.float32)

    def _joined(self, first: Floats, second: Floats) -> Floats:
        return np.concatenate([first, second])

    def _all_reduce(self, x: Floats, n_next: int) -> None:
        self._plane.all_reduce(x, n_next)
