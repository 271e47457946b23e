"""EncoderDecoderBackend: a model with two stacks in PyTorch, on the CPU or on other devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from orcaserve.config import EngineConfig
from orcaserve.model.adapter import Adapter
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.reference.encoder_decoder import EncoderDecoder, load_encoder_decoder
from orcaserve.worker.backend import Outcome
from orcaserve.worker.reference_backend import PyTorchBackend
from orcaserve.worker.scoring import NOTHING, Wanted, choose


class NoAdapters:
    """What of a Backend (see backend.py) a model with an encoder has no use for."""

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


class EncoderDecoderBackend(NoAdapters, PyTorchBackend[EncoderDecoder]):
    """A Backend: a model with two stacks."""

    def __init__(self, config: EngineConfig, n_threads: int) -> None:
        super().__init__(config, n_threads, load_encoder_decoder)
        self.spec = self._model.spec

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
