"""NativeBackend: the model on the CPU's own kernels."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from orcaserve.config import EngineConfig
from orcaserve.core import ConfigError, UnsupportedModel
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.loader import ModelFiles
from orcaserve.native import _kernels
from orcaserve.native.builder import NativeBuilder
from orcaserve.native.kv_region import PAGE_SIZE_STEP, KVRegion, slot_bytes
from orcaserve.native.model import NativeModel
from orcaserve.native.precision import choose_precision
from orcaserve.native.sampler import Sampler

_log = logging.getLogger(__name__)


class NativeBackend:
    """A Backend."""

    def __init__(self, config: EngineConfig, n_threads: int) -> None:
        model, self._page_size = config.model, config.kv.page_size
        if self._page_size % PAGE_SIZE_STEP:
            raise ConfigError("page_size", f"must be a multiple of {PAGE_SIZE_STEP} on a CPU")
        team = _kernels.Team(n_threads)
        with ModelFiles(model.path) as files:
            if files.spec.head_dim % 4:
                raise UnsupportedModel(
                    f"heads of {files.spec.head_dim} dimensions are not supported on a CPU, only multiples of 4; "
                    "--device reference runs this model, slowly"
                )
            precision = choose_precision(model.dtype, model.quantization, config.kv.dtype, files.matrix_kinds)
            _log.info("%s: %s", model.name, precision.why)
            self._model = NativeModel(files.spec, files.load(NativeBuilder(precision, team)), team)
        self._storage = precision.kv
        self.spec = self._model.spec
        self.sampler = Sampler(team)
        self.slot_bytes = slot_bytes(self.spec, self._storage)

    def allocate(self, n_pages: int) -> None:
        self._kv = KVRegion(self.spec, n_pages, self._page_size, self._storage)

    def iterate(
        self, token_ids: Int32s, layout: Layout, request_ids: Sequence[int]
    ) -> tuple[Sequence[int], dict[int, str]]:
        return self.sampler.sample(self._model.forward(token_ids, layout, self._kv), request_ids)
