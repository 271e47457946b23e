"""EncoderDecoderBackend: a model with two stacks in PyTorch, on the CPU or on other devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from orcaserve.config import EngineConfig
from orcaserve.model.adapter import Adapter
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.reference.encoder_decoder import load_encoder_decoder
from orcaserve.model.reference.kv_region import STORAGE, KVRegion
from orcaserve.model.reference.sampler import Sampler
from orcaserve.worker.backend import Outcome
from orcaserve.worker.devices import torch_device
from orcaserve.worker.grammars import ConstrainedSampler, vocabulary_of
from orcaserve.worker.reference_backend import chosen
from orcaserve.worker.scoring import NOTHING, Wanted, choose


class EncoderDecoderBackend:
    """A Backend. `auto` takes float32 for weights and K/V."""

    def __init__(self, config: EngineConfig, n_threads: int) -> None:
        device = torch_device(config.model.device)
        torch.set_num_threads(n_threads)
        self._model = load_encoder_decoder(config.model.path, chosen(config.model.dtype), device)
        self._kv_dtype = chosen(config.kv.dtype)
        self._page_size = config.kv.page_size
        self.spec = self._model.spec
        self.sampler = ConstrainedSampler(Sampler(), vocabulary_of(config.model.path, self.spec))
        self.slot_bytes = 2 * self.spec.n_layers * self.spec.kv_size * STORAGE[self._kv_dtype].itemsize

    @property
    def progress(self) -> int:
        return self._model.n_steps

    def allocate(self, n_pages: int) -> None:
        self._kv = KVRegion(self.spec, n_pages, self._page_size, self._kv_dtype, self._model.device)

    @property
    def part(self) -> None:
        """There are no adapters of such models."""

    def make_adapter(self, adapter: Adapter) -> Any:
        raise AssertionError("refused before")

    def add_adapter(self, number: int, made: Any) -> None:
        raise AssertionError("refused before")

    def remove_adapter(self, number: int) -> None: ...

    def copy_page(self, source: int, target: int) -> None:
        raise AssertionError("no prefixes are shared where an encoder reads the whole prompt")

    def iterate(
        self,
        token_ids: Int32s,
        layout: Layout,
        request_ids: Sequence[int],
        rows: Sequence[int] | None = None,
        wanted: Wanted = NOTHING,
    ) -> Outcome:
        assert rows is None and not wanted.prompts, "no initiation comes in pieces, and no prompt is scored"
        self.sampler.begin(request_ids)
        logits = self._model.forward(torch.from_numpy(token_ids).long().to(self._model.device), layout, self._kv)
        return choose(self.sampler, logits, request_ids, wanted)
