"""OfDecoder: what all backends of decoders hand on, whatever runs the model."""

from __future__ import annotations

from typing import Any, Protocol

from orcaserve.model.adapter import Adapter


class _Model(Protocol):
    def make_adapter(self, adapter: Adapter) -> Any: ...
    def add_adapter(self, number: int, made: Any) -> None: ...
    def remove_adapter(self, number: int) -> None: ...


class _Pages(Protocol):
    def copy_page(self, source: int, target: int) -> None: ...


class _Holds(Protocol):
    @property
    def _model(self) -> _Model: ...
    @property
    def _kv(self) -> _Pages: ...


class OfDecoder:
    """Adapters go to the model, copies of pages to its K/V: part of a Backend (see there). Models with an encoder have
    NoAdapters instead.
    """

    def make_adapter(self: _Holds, adapter: Adapter) -> Any:
        return self._model.make_adapter(adapter)

    def add_adapter(self: _Holds, number: int, made: Any) -> None:
        self._model.add_adapter(number, made)

    def remove_adapter(self: _Holds, number: int) -> None:
        self._model.remove_adapter(number)

    def copy_page(self: _Holds, source: int, target: int) -> None:
        self._kv.copy_page(source, target)
