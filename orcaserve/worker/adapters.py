"""LoadedAdapters: the adapters that a worker has, as its part of the model needs them."""

from __future__ import annotations

import logging

from orcaserve.checkpoint.lora import LoraFiles, digest
from orcaserve.config import AdapterConfig, EngineConfig
from orcaserve.core import CheckpointError, ModelError
from orcaserve.model.adapter import Adapter, load_adapter, n_weights, names_of
from orcaserve.worker.backend import Backend
from orcaserve.worker.resources import available_memory

_BYTES = 4  # of a number, at most

_log = logging.getLogger(__name__)


class LoadedAdapters:
    """By number. Not thread-safe, but for `read`: the device executor's thread owns it."""

    def __init__(self, backend: Backend, config: EngineConfig) -> None:
        self._backend, self._path, self._max_rank = backend, config.model.path, config.adapters.max_rank
        self._numbers: set[int] = set()

    @classmethod
    def begin(cls, backend: Backend, config: EngineConfig) -> LoadedAdapters:
        """With those that the settings name. Raises ModelError; but a successor of another engine goes on
        without those that cannot be had any more, whose requests fail."""
        adapters = cls(backend, config)
        for adapter in config.adapters.modules:
            try:
                adapters.add(adapter.number, adapters.read(adapter))
            except ModelError as error:
                if not config.adapters.of_successor:
                    raise
                _log.error("adapter %s is lost: %s", adapter.name, error)
        return adapters

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def read(self, adapter: AdapterConfig) -> Adapter:
        """What this worker needs of its files. From any thread. Raises ModelError with the adapter's name."""
        try:
            with LoraFiles(adapter.path) as files:
                needed = n_weights(self._backend.spec, files.rank) * _BYTES
                if needed > available_memory():
                    raise ModelError(f"it may take {needed} bytes, and so many are not free")
                read = load_adapter(files, names_of(self._path), self._backend.part, self._max_rank)
            if adapter.digest and digest(adapter.path) != adapter.digest:
                raise CheckpointError("its files have changed since it was loaded")
        except ModelError as error:
            raise type(error)(f"adapter {adapter.name}: {error}") from error
        return read

    def add(self, number: int, adapter: Adapter) -> None:
        self._backend.add_adapter(number, adapter)
        self._numbers.add(number)

    def remove(self, number: int) -> None:
        """No request has it any more. Of no effect for an unknown one."""
        self._numbers.discard(number)
        self._backend.remove_adapter(number)
