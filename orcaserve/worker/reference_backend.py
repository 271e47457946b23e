"""ReferenceBackend: the model in PyTorch, on the CPU or on other devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import torch

from orcaserve.config import EngineConfig
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.part import Part
from orcaserve.model.reference.builder import DTYPES, load_reference
from orcaserve.model.reference.encoder_decoder import EncoderDecoder
from orcaserve.model.reference.kv_region import STORAGE, KVRegion
from orcaserve.model.reference.sampler import Sampler
from orcaserve.model.reference.transformer import Transformer
from orcaserve.worker.backend import Outcome
from orcaserve.worker.decoder import OfDecoder
from orcaserve.worker.devices import torch_device
from orcaserve.worker.grammars import ConstrainedSampler, vocabulary_of
from orcaserve.worker.pooling import fill
from orcaserve.worker.scoring import NOTHING, Wanted, choose, joined, score_prompts

ModelT = TypeVar("ModelT", Transformer, EncoderDecoder)


class PyTorchBackend(Generic[ModelT]):
    """What backends with a whole model in PyTorch share. `auto` takes float32 for weights and K/V."""

    def __init__(self, config: EngineConfig, n_threads: int, load: Callable[[Path, str, torch.device], ModelT]) -> None:
        device = torch_device(config.model.device)
        torch.set_num_threads(n_threads)
        self._model: ModelT = load(config.model.path, chosen(config.model.dtype), device)
        self._kv_dtype = chosen(config.kv.dtype)
        self._page_size = config.kv.page_size
        spec = self._model.spec
        self.sampler = ConstrainedSampler(Sampler(), vocabulary_of(config.model.path, spec))
        self.slot_bytes: int = 2 * spec.n_layers * spec.kv_size * STORAGE[self._kv_dtype].itemsize

    @property
    def progress(self) -> int:
        return self._model.n_steps

    def allocate(self, n_pages: int) -> None:
        self._kv = KVRegion(self._model.spec, n_pages, self._page_size, self._kv_dtype, self._model.device)


class ReferenceBackend(OfDecoder, PyTorchBackend[Transformer]):
    """A Backend: a model that is a decoder."""

    def __init__(self, config: EngineConfig, n_threads: int) -> None:
        super().__init__(config, n_threads, load_reference)
        self.spec = self._model.spec

    @property
    def part(self) -> Part:
        return self._model.part

    @torch.inference_mode()
    def iterate(
        self,
        token_ids: Int32s,
        layout: Layout,
        request_ids: Sequence[int],
        rows: Sequence[int] | None = None,
        wanted: Wanted = NOTHING,
    ) -> Outcome:
        self.sampler.begin(request_ids)
        model = self._model
        states = model.states(torch.from_numpy(token_ids).long().to(model.device), layout, self._kv)
        logits = model.head(states, layout.last_rows if rows is None else layout.last_rows[rows])
        chosen = choose(self.sampler, logits, request_ids, wanted)
        if not wanted.of_states:
            return chosen
        if wanted.pooled:
            fill(wanted.pooled, self.spec.hidden_size, lambda some: model.normed(states, some).cpu().numpy())
        scored = score_prompts(
            wanted.prompts, self.spec.vocab_size, lambda some: model.head(states, some), self.sampler
        )
        return joined(chosen, scored)


def chosen(dtype: str) -> str:
    """The setting of a type of numbers, without `auto`."""
    return "float32" if dtype == "auto" else dtype


def torch_dtype(setting: str) -> torch.dtype:
    return DTYPES[chosen(setting)]
