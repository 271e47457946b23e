"""Adapters: what clients may name in `model` beside the served model itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from orcaserve.checkpoint.lora import LoraFiles, digest
from orcaserve.config import ADAPTER_NAMES, AdaptersConfig, is_adapter_name
from orcaserve.core.adapter import AdapterSource
from orcaserve.core.errors import InvalidRequest, ModelError, ModelNotFound


class Engines(Protocol):
    """What loads them: a Supervisor, or Replicas."""

    @property
    def n_adapters(self) -> int: ...
    async def load_adapter(self, adapter: AdapterSource) -> None: ...
    def unload_adapter(self, number: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Served:
    """What a request asks for. name: as its client calls it; adapter: the number of its adapter, or 0."""

    name: str
    adapter: int = 0


@dataclass(frozen=True, slots=True)
class Named:
    """An adapter that requests may name. created: seconds since 1970."""

    source: AdapterSource
    created: int


class Adapters:
    """By name. Read from any thread, changed on the event loop.

    model: the name of the base model.
    """

    def __init__(self, model: str, config: AdaptersConfig, engines: Engines) -> None:
        self.model, self._config, self._engines = model, config, engines
        now = int(time.time())
        self._named = {adapter.name: Named(adapter, now) for adapter in config.modules}
        self._numbers = count(1 + max((adapter.number for adapter in config.modules), default=0))
        self._loading: set[str] = set()

    def __iter__(self) -> Iterator[Named]:
        return iter(list(self._named.values()))

    def served(self, body: Mapping[str, Any]) -> Served:
        """What `model` names. Raises InvalidRequest (404) if that is nothing."""
        name = body.get("model")
        if name == self.model:
            return Served(self.model)
        named = self._named.get(name) if isinstance(name, str) else None
        if named is None:
            raise _unknown("model")
        return Served(named.source.name, named.source.number)

    def check(self, number: int) -> None:
        """Raises InvalidRequest (404) if it has been unloaded since a request named it."""
        if number and all(named.source.number != number for named in self):
            raise _unknown("model")

    async def load(self, name: str, path: str) -> None:
        """Requests may name it when this returns. Raises InvalidRequest, or EngineError if there is no engine now.

        Goes on if its client leaves: else nobody would know what the engine has.
        """
        self._check_updating()
        if not is_adapter_name(name):
            raise InvalidRequest("lora_name", ADAPTER_NAMES)
        if name == self.model or name in self._named or name in self._loading:
            raise InvalidRequest("lora_name", "a model of this name is loaded already", code="already_loaded")
        if self._engines.n_adapters + len(self._loading) >= self._config.max_loras:
            message = f"--max-loras {self._config.max_loras} adapters are loaded: unload one first"
            raise InvalidRequest("lora_name", message, code="too_many_adapters")
        self._loading.add(name)
        await asyncio.shield(asyncio.create_task(self._load(name, Path(path))))

    def unload(self, name: str) -> None:
        """From now on no request may name it; those that have it go on. Raises InvalidRequest."""
        self._check_updating()
        named = self._named.pop(name, None)
        if named is None:
            raise _unknown("lora_name")
        self._engines.unload_adapter(named.source.number)

    async def _load(self, name: str, path: Path) -> None:
        try:
            whole = await asyncio.to_thread(_digest_of, path)
            source = AdapterSource(next(self._numbers), name, path, whole)
            await self._engines.load_adapter(source)
            self._named[name] = Named(source, int(time.time()))
        except ModelNotFound as error:
            message = "lora_path must be a folder of the server with adapter_config.json and adapter_model.safetensors"
            raise InvalidRequest("lora_path", message, code="adapter_not_found", status=404) from error
        except ModelError as error:
            raise InvalidRequest("lora_path", str(error), code="invalid_adapter") from error
        finally:
            self._loading.discard(name)

    def _check_updating(self) -> None:
        if not self._config.updating:
            message = "adapters are loaded and unloaded only by a server with --enable-runtime-lora-updating"
            raise InvalidRequest(None, message, code="lora_updating_disabled", status=403)


def _unknown(field: str) -> InvalidRequest:
    message = "the model does not exist: GET /v1/models lists what is served"
    return InvalidRequest(field, message, code="model_not_found", status=404)


def _digest_of(path: Path) -> str:
    """Once its settings have been read. Raises ModelError."""
    LoraFiles(path).close()
    return digest(path)
