"""LoadedAdapters: the adapters that a worker has, as its part of the model needs them."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from orcaserve.checkpoint.lora import LoraFiles, digest
from orcaserve.config import EngineConfig
from orcaserve.core import AdapterAnswer, AdapterSource, CheckpointError, ModelError, UnsupportedModel
from orcaserve.model.adapter import load_adapter, n_weights, names_of
from orcaserve.worker.backend import Backend
from orcaserve.worker.executor import DeviceExecutor
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

    def read(self, adapter: AdapterSource) -> Any:
        """What this worker needs of its files, for `add`. From any thread. Raises ModelError that names the adapter."""
        part = self._backend.part
        try:
            if part is None:
                raise UnsupportedModel("adapters of models with an encoder are not supported")
            with LoraFiles(adapter.path) as files:
                needed = n_weights(part.spec, files.rank) * _BYTES
                if needed > available_memory():
                    raise ModelError(f"it may take {needed} bytes, and so many are not free")
                read = load_adapter(files, names_of(self._path), part, self._max_rank)
            if adapter.digest and digest(adapter.path) != adapter.digest:
                raise CheckpointError("its files have changed since it was loaded")
        except ModelError as error:
            raise type(error)(f"adapter {adapter.name}: {error}") from error
        return self._backend.make_adapter(read)

    def add(self, number: int, made: Any) -> None:
        self._backend.add_adapter(number, made)
        self._numbers.add(number)

    def remove(self, number: int) -> None:
        """No request has it any more. Of no effect for an unknown one."""
        self._numbers.discard(number)
        self._backend.remove_adapter(number)


class TakesAdapters(Protocol):
    """A worker, as far as adapters concern it."""

    def read_adapter(self, adapter: AdapterSource) -> Any: ...
    def add_adapter(self, number: int, made: Any) -> None: ...


def load_beside(worker: TakesAdapters, executor: DeviceExecutor, adapter: AdapterSource, answer: AdapterAnswer) -> None:
    """On a thread of its own, so that iterations go on; between two of them the adapter is there."""
    try:
        made = worker.read_adapter(adapter)
    except ModelError as error:
        answer(str(error))
        return
    except Exception as error:
        _log.exception("loading adapter %s failed", adapter.name)
        answer(f"adapter {adapter.name} could not be loaded: {type(error).__name__}")
        return

    def add() -> None:
        worker.add_adapter(adapter.number, made)
        answer(None)

    executor.post(add)
