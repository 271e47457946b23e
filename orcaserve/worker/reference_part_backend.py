"""ReferencePartBackend: a part of the model in PyTorch, on a CPU or a GPU, and its place on the data plane."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from orcaserve.config import EngineConfig
from orcaserve.core import ConfigError
from orcaserve.core.spans import COMPUTE, RECEIVE, SAMPLE, Span
from orcaserve.data_plane.device_tensors import IncomingTensor, TensorPlane
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.part import Part
from orcaserve.model.reference.builder import load_reference_part
from orcaserve.model.reference.kv_region import STORAGE, KVRegion
from orcaserve.model.reference.sampler import Sampler
from orcaserve.worker import backend
from orcaserve.worker.among import Among
from orcaserve.worker.devices import check_nccl, torch_device
from orcaserve.worker.reference_backend import chosen, torch_dtype
from orcaserve.worker.sampled_elsewhere import SampledElsewhere


class ReferencePartBackend:
    """A RunsPart (see parts.py) whose hidden states and sums stay on its device.

    `auto` takes float32 for weights and K/V. What travels is of the weights' type, but for logits, which are float32.
    """

    def __init__(self, config: EngineConfig, part: Part, n_threads: int, among: Among) -> None:
        """Reads the part's weights and no others. Raises ModelError, or ConfigError for settings that do not suit."""
        torch.set_num_threads(n_threads)
        self._device = torch_device(config.model.device, among)
        check_nccl(self._device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # of this thread, which is the only one that computes
        self.spec, self._part = part.spec, part
        self._dtype = torch_dtype(config.model.dtype)
        all_reduce = self._all_reduce if part.n_shards > 1 else None
        self._model = load_reference_part(config.model.path, part, self._dtype, self._device, all_reduce)
        self._kv_dtype, self._page_size = chosen(config.kv.dtype), config.kv.page_size
        own = part.own_spec
        self.slot_bytes = 2 * own.n_layers * own.kv_size * STORAGE[self._kv_dtype].itemsize
        self._sampler = Sampler() if part.last and part.shard == 0 else None
        self.sampler: backend.Sampler = self._sampler or SampledElsewhere()
        self._vocabularies = [
            len(Part(part.spec, part.layers, shard, part.n_shards).vocabulary) for shard in range(part.n_shards)
        ]
        self._expected: deque[tuple[int, IncomingTensor | None]] = deque()  # rows of iterations to come, and receives
        self._passed_on = False  # whether the iteration under way has been
        self._records = config.parallel.timeline is not None
        self.spans: list[Span] = []

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

    def expect(self, n_rows: int) -> None:
        incoming = None if self._part.first else self._plane.receive(n_rows, self.spec.hidden_size)
        self._expected.append((n_rows, incoming))

    @torch.inference_mode()
    def iterate(
        self, token_ids: Int32s, layout: Layout, request_ids: Sequence[int], rows: Sequence[int] | None = None
    ) -> tuple[Sequence[int], dict[int, str]]:
        received, n_rows = self._receive()
        started = time.monotonic_ns()
        inputs = self._on_device(token_ids) if received is None else received[: len(token_ids)]
        out = self._model.forward(inputs, layout, self._kv)
        ended = self._now()
        self.spans.append(Span(COMPUTE, started, ended))
        if not self._part.last:
            self._send(out, n_rows)
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

    @torch.inference_mode()
    def settle(self) -> None:
        if not self._passed_on:
            received, n_rows = self._receive()
            if not self._part.last:
                self._send(self._rows(0) if received is None else received, n_rows)
        self._passed_on = False

    def _on_device(self, token_ids: Int32s) -> Tensor:
        return torch.from_numpy(token_ids).long().to(self._device)

    def _receive(self) -> tuple[Tensor | None, int]:
        n_rows, incoming = self._expected.popleft()
        if incoming is None:
            return None, n_rows
        started = time.monotonic_ns()
        received = incoming.wait()
        self.spans.append(Span(RECEIVE, started, time.monotonic_ns()))
        return received, n_rows

    def _send(self, rows: Tensor, n_rows: int) -> None:
        if len(rows) < n_rows:
            rows = torch.cat([rows, self._rows(n_rows - len(rows))])
        self._plane.send(rows)
        self._passed_on = True

    def _rows(self, n: int) -> Tensor:
        return torch.zeros((n, self.spec.hidden_size), dtype=self._dtype, device=self._device)

    def _all_reduce(self, x: Tensor) -> None:
        self._plane.all_reduce(x)

    def _now(self) -> int:
        """A GPU works on while its host has long gone on: it is waited for only if somebody looks at the times."""
        if self._records and self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return time.monotonic_ns()
