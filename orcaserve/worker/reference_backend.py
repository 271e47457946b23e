"""ReferenceBackend: the model in PyTorch, on the CPU or on other devices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from orcaserve.config import EngineConfig
from orcaserve.core import ConfigError
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.reference.builder import load_reference
from orcaserve.model.reference.kv_region import STORAGE, KVRegion
from orcaserve.model.reference.sampler import Sampler


class ReferenceBackend:
    """A Backend. `auto` takes float32 for weights and K/V."""

    def __init__(self, config: EngineConfig, n_threads: int) -> None:
        device = "cpu" if config.model.device in ("cpu", "reference") else config.model.device
        if device != "cpu" and not torch.cuda.is_available():
            raise ConfigError("--device", f"PyTorch finds no {device} here")
        torch.set_num_threads(n_threads)
        self._model = load_reference(config.model.path, _dtype(config.model.dtype), device)
        self._kv_dtype = _dtype(config.kv.dtype)
        self._page_size = config.kv.page_size
        self.spec = self._model.spec
        self.sampler = Sampler()
        self.slot_bytes = 2 * self.spec.n_layers * self.spec.kv_size * STORAGE[self._kv_dtype].itemsize

    @property
    def progress(self) -> int:
        return self._model.n_steps

    def allocate(self, n_pages: int) -> None:
        self._kv = KVRegion(self.spec, n_pages, self._page_size, self._kv_dtype, self._model.device)

    @torch.inference_mode()
    def iterate(
        self, token_ids: Int32s, layout: Layout, request_ids: Sequence[int], rows: Sequence[int] | None = None
    ) -> tuple[Sequence[int], dict[int, str]]:
        logits = self._model.forward(torch.from_numpy(token_ids).long().to(self._model.device), layout, self._kv)
        if rows is not None:
            logits = logits[rows]
        return self.sampler.sample(logits, request_ids) if request_ids else ([], {})


def _dtype(setting: str) -> str:
    return "float32" if setting == "auto" else setting
