"""What a checkpoint's sentence-transformers files say of how its embeddings are made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orcaserve.checkpoint.json_object import MAX_BYTES, parse_object
from orcaserve.core.errors import CheckpointError, UnsupportedModel
from orcaserve.core.pooling import Pooling

MODULES, POOLING = "modules.json", "1_Pooling/config.json"
SERVED = {"mean": Pooling.MEAN, "mean_tokens": Pooling.MEAN, "lasttoken": Pooling.LAST}
_MODE = "pooling_mode_"  # of the names of flags; without more, of the name of a way
# Modules by the end of their names. Vectors are normalised here in any case, unless a request says otherwise.
_KNOWN = ("Transformer", "Pooling", "Normalize")


def read_pooling(path: Path) -> Pooling:
    """How the model at `path` is to be pooled; the last token if nothing there says.

    Raises UnsupportedModel, naming what is not served, and CheckpointError if a file is damaged.
    """
    if not path.is_dir():
        return Pooling.LAST
    _check_modules(path / MODULES)
    file = path / POOLING
    if not file.is_file():
        return Pooling.LAST
    ways = _ways(parse_object(_read(file), POOLING))
    if len(ways) == 1 and ways[0] in SERVED:
        return SERVED[ways[0]]
    asked = " and ".join(ways) or "no"
    raise UnsupportedModel(f"{POOLING} asks for {asked} pooling; served are mean and lasttoken")


def _ways(config: Mapping[str, Any]) -> list[str]:
    named = config.get(_MODE.rstrip("_"))
    if isinstance(named, str):
        return [named]
    return [name.removeprefix(_MODE) for name, value in config.items() if name.startswith(_MODE) and value is True]


def _check_modules(file: Path) -> None:
    """Whatever else is made of a pooled vector, such as a Dense module, would be missing from it."""
    if not file.is_file():
        return
    modules = parse_object(b'{"modules":' + _read(file) + b"}", MODULES).get("modules")
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(f"{MODULES} is not a list of modules")
    for module in modules:
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind not in _KNOWN:
            raise UnsupportedModel(f"{MODULES} has a {kind or 'nameless'} module; served are {', '.join(_KNOWN)}")


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_BYTES)
    except OSError as error:
        raise CheckpointError(f"{file.name} cannot be read: {error.strerror or error}") from error
