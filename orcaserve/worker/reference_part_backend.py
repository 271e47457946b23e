"""Parts of a model in PyTorch, on a CPU or a GPU, and their place on the data plane."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic

import torch
from torch import Tensor

from orcaserve.config import EngineConfig
from orcaserve.core import ConfigError
from orcaserve.data_plane.device_tensors import TensorPlane
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.parameter import Floats
from orcaserve.model.part import Part
from orcaserve.model.reference.builder import load_reference_part
from orcaserve.model.reference.kv_region import STORAGE, KVRegion
from orcaserve.model.reference.sampler import Sampler
from orcaserve.model.reference.transformer import AllReduce, Transformer
from orcaserve.worker.among import Among
from orcaserve.worker.backend import Outcome
from orcaserve.worker.decoder import OfDecoder
from orcaserve.worker.devices import check_nccl, torch_device
from orcaserve.worker.passing_on import PassesOn
from orcaserve.worker.plan import PartT
from orcaserve.worker.reference_backend import ModelT, chosen, torch_dtype
from orcaserve.worker.scoring import NOTHING, Wanted


class PyTorchPartBackend(PassesOn[Tensor, PartT], Generic[PartT, ModelT]):
    """What backends with a part of a model in PyTorch share. Hidden states and sums stay on its device.

    `auto` takes float32 for weights and K/V. What travels is of the weights' type, but for logits, which are float32.
    """

    def __init__(
        self,
        config: EngineConfig,
        part: PartT,
        n_threads: int,
        among: Among,
        load: Callable[[Path, PartT, torch.dtype, torch.device, AllReduce | None], ModelT],
    ) -> None:
        """load: reads the part's weights and no others. Raises ModelError, or ConfigError for settings that do not
        suit."""
        torch.set_num_threads(n_threads)
        self._device = torch_device(config.model.device, among)
        check_nccl(self._device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # of this thread, which is the only one that computes
        super().__init__(part, config.model.path)
        self._dtype = torch_dtype(config.model.dtype)
        all_reduce = self._all_reduce if part.n_shards > 1 else None
        self._model: ModelT = load(config.model.path, part, self._dtype, self._device, all_reduce)
        self._kv_dtype, self._page_size = chosen(config.kv.dtype), config.kv.page_size
        own = part.own_spec
        self.slot_bytes = 2 * own.n_layers * own.kv_size * STORAGE[self._kv_dtype].itemsize
        self._records = config.parallel.timeline is not None

    @property
    def progress(self) -> int:
        return self._model.n_steps

    def allocate(self, n_pages: int) -> None:
        try:
            self._kv = KVRegion(self._part.own_spec, n_pages, self._page_size, self._kv_dtype, self._device)
        except torch.OutOfMemoryError as error:
            n_slots = n_pages * self._page_size
            raise ConfigError("--n-slots", f"{n_slots} slots do not fit the memory of {self._device}") from error

    def join(self, plane: TensorPlane) -> None:
        self._plane = plane

    @torch.inference_mode()
    def iterate(
        self,
        token_ids: Int32s,
        layout: Layout,
        request_ids: Sequence[int],
        rows: Sequence[int] | None = None,
        wanted: Wanted = NOTHING,
    ) -> Outcome:
        return super().iterate(token_ids, layout, request_ids, rows, wanted)

    @torch.inference_mode()
    def settle(self) -> None:
        super().settle()

    def _make_sampler(self) -> Sampler:
        return Sampler()

    def _compute(self, token_ids: Int32s, received: Tensor | None, layout: Layout) -> Tensor:
        return self._model.forward(self._inputs(token_ids, received), layout, self._kv)

    def _inputs(self, token_ids: Int32s, received: Tensor | None) -> Tensor:
        return torch.from_numpy(token_ids).long().to(self._device) if received is None else received

    def _zeros(self, n: int) -> Tensor:
        return torch.zeros((n, self.spec.hidden_size), dtype=self._dtype, device=self._device)

    def _joined(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.cat([first, second])

    def _all_reduce(self, x: Tensor) -> None:
        self._plane.all_reduce(x)

    def _now(self) -> int:
        """A GPU works on while its host has long gone on: it is waited for only if somebody looks at the times."""
        if self._records and self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return time.monotonic_ns()


class ReferencePartBackend(OfDecoder, PyTorchPartBackend[Part, Transformer]):
    """A RunsPart (see parts.py): of a model that is a decoder."""

    def __init__(self, config: EngineConfig, part: Part, n_threads: int, among: Among) -> None:
        super().__init__(config, part, n_threads, among, load_reference_part)

    @property
    def part(self) -> Part:
        return self._part

    def _compute_and_keep(self, token_ids: Int32s, received: Tensor | None, layout: Layout) -> tuple[Tensor, Tensor]:
        states = self._model.states(self._inputs(token_ids, received), layout, self._kv)
        return self._model.head(states, layout.last_rows), states

    def _head(self, states: Tensor, rows: Int32s) -> Tensor:
        return self._model.head(states, rows)

    def _normed(self, states: Tensor, rows: Int32s) -> Floats:
        normed: Floats = self._model.normed(states, rows).cpu().numpy()
        return normed
