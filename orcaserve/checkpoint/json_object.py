"""Reading the JSON files of a checkpoint, which may be hostile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orcaserve.core.errors import CheckpointError, ModelNotFound

MAX_BYTES = 64 << 20


def parse_object(raw: bytes, file: str) -> dict[str, Any]:
    """A JSON object without duplicate keys; CheckpointError otherwise."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) != len(pairs):
            raise CheckpointError(f"{file} names something twice")
        return entries

    try:
        value = json.loads(raw, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} holds no valid JSON") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} holds no JSON object")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ModelNotFound if it cannot be read, CheckpointError if it is none."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise CheckpointError(f"{path.name} is larger than {MAX_BYTES} bytes")
    return parse_object(raw, path.name)
