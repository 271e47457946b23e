"""NativeBackend: the model on the CPU's own kernels."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from orcaserve.checkpoint.converted import WEIGHTS, is_converted
from orcaserve.config import EngineConfig, ModelConfig
from orcaserve.core import CheckpointError, ConfigError
from orcaserve.model.filled_heads import HEAD_UNIT
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.loader import ModelFiles
from orcaserve.model.part import Part
from orcaserve.model.spec import ModelSpec
from orcaserve.native import _kernels
from orcaserve.native.builder import NativeWeights
from orcaserve.native.exact_inputs import build_weights
from orcaserve.native.kv_region import PAGE_SIZE_STEP, KVRegion, slot_bytes
from orcaserve.native.model import NativeModel
from orcaserve.native.packed_model import PackedFile, load_packed
from orcaserve.native.precision import Precision, choose_precision
from orcaserve.native.sampler import Sampler
from orcaserve.native.support import check_supported
from orcaserve.worker.backend import Outcome
from orcaserve.worker.decoder import OfDecoder
from orcaserve.worker.grammars import ConstrainedSampler, vocabulary_of
from orcaserve.worker.pooling import fill
from orcaserve.worker.scoring import NOTHING, Wanted, choose, joined, score_prompts

_log = logging.getLogger(__name__)


class NativeBackend(OfDecoder):
    """A Backend. Its threads run the kernels, packing included, and sleep in between."""

    def __init__(self, config: EngineConfig, n_threads: int) -> None:
        """Raises ModelError, or ConfigError for settings that do not suit the model."""
        self._page_size = config.kv.page_size
        if self._page_size % PAGE_SIZE_STEP:
            raise ConfigError("page_size", f"must be a multiple of {PAGE_SIZE_STEP} on a CPU")
        self._team = team = _kernels.Team(n_threads)
        if is_converted(config.model.path):
            self.spec, precision, weights = _load_converted(config.model, n_threads)
        else:
            self.spec, precision, weights = _load_files(config.model, team)
        precision = precision.with_kv(config.kv.dtype)
        _log.info("%s: %s", config.model.name, precision.text)
        try:
            self._model = NativeModel(self.spec, weights, team)
        except ValueError as error:
            raise CheckpointError(f"{config.model.path.name}: {error}") from error
        team.take_cores(0, n_threads)
        self._storage = precision.kv
        self.sampler = ConstrainedSampler(Sampler(team), vocabulary_of(config.model.path, self.spec))
        self.slot_bytes = slot_bytes(self.spec, self._storage)

    @property
    def progress(self) -> int:
        return self._team.progress

    def allocate(self, n_pages: int) -> None:
        self._kv = KVRegion(self.spec, n_pages, self._page_size, self._storage)

    @property
    def part(self) -> Part:
        return self._model.part

    def iterate(
        self,
        token_ids: Int32s,
        layout: Layout,
        request_ids: Sequence[int],
        rows: Sequence[int] | None = None,
        wanted: Wanted = NOTHING,
    ) -> Outcome:
        self.sampler.begin(request_ids)
        model, states = self._model, self._model.room_for(layout) if wanted.of_states else None
        # The kernels want a row at least; of nobody's logits none is looked at.
        of_rows = None if rows is None else layout.last_rows[rows or [0]]
        logits = model.forward(token_ids, layout, self._kv, of_rows, states=states)
        chosen = choose(self.sampler, logits, request_ids, wanted)
        if states is None:
            return chosen
        kept = states
        if wanted.pooled:
            fill(wanted.pooled, self.spec.hidden_size, lambda rows: model.normed(kept[rows]))
        scored = score_prompts(
            wanted.prompts, self.spec.vocab_size, lambda rows: model.head(kept[rows], self._kv), self.sampler
        )
        return joined(chosen, scored)


def _load_files(model: ModelConfig, team: _kernels.Team) -> tuple[ModelSpec, Precision, NativeWeights]:
    with ModelFiles(model.path, HEAD_UNIT) as files:
        check_supported(files.spec)
        precision = choose_precision(model.dtype, model.quantization, files.matrix_kinds)
        return files.spec, precision, build_weights(files, precision, team)


def _load_converted(model: ModelConfig, n_threads: int) -> tuple[ModelSpec, Precision, NativeWeights]:
    path = model.path / WEIGHTS
    PackedFile(path).check_settings(model.dtype, model.quantization)
    return load_packed(path, n_threads)
