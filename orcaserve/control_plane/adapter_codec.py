"""Codec of adapters, which travel to the engine and on to its workers."""

from __future__ import annotations

from pathlib import Path

from orcaserve.control_plane import engine_pb2 as wire
from orcaserve.core import AdapterSource


def encode_adapter(adapter: AdapterSource) -> wire.Adapter:
    return wire.Adapter(number=adapter.number, name=adapter.name, path=str(adapter.path), digest=adapter.digest)


def decode_adapter(message: wire.Adapter) -> AdapterSource:
    return AdapterSource(message.number, message.name, Path(message.path), message.digest)


def encode_adapter_news(number: int, error: str | None, unloaded: bool = False) -> wire.AdapterNews:
    """error: why it could not be loaded, or None."""
    return wire.AdapterNews(number=number, unloaded=unloaded, error=error or "")
