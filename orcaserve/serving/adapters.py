"""Adapters: what clients may name in `model` beside the served model itself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orcaserve.config import AdapterConfig, AdaptersConfig
from orcaserve.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Served:
    """What a request asks for. name: as its client calls it; adapter: the number of what is added to the model, or 0."""

    name: str
    adapter: int = 0


@dataclass(frozen=True, slots=True)
class Named:
    """An adapter that requests may name. created: seconds since 1970."""

    config: AdapterConfig
    created: int


class Adapters:
    """By name. Read from any thread, changed on the event loop."""

    def __init__(self, model: str, config: AdaptersConfig) -> None:
        """model: the name of the base model."""
        self._model, self._config = model, config
        now = int(time.time())
        self._named = {adapter.name: Named(adapter, now) for adapter in config.modules}

    def __iter__(self) -> Iterator[Named]:
        return iter(list(self._named.values()))

    def get(self, name: str) -> Named | None:
        return self._named.get(name)

    def served(self, body: Mapping[str, Any]) -> Served:
        """What `model` names. Raises InvalidRequest (404) if that is nothing."""
        name = body.get("model")
        if name == self._model:
            return Served(self._model)
        named = self._named.get(name) if isinstance(name, str) else None
        if named is None:
            message = "the model does not exist: GET /v1/models lists what is served"
            raise InvalidRequest("model", message, code="model_not_found", status=404)
        return Served(named.config.name, named.config.number)
