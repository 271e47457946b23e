"""Checkpoint: a model's settings and tensors, whatever format its files have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from orcaserve.checkpoint.awq import AwqCheckpoint
from orcaserve.checkpoint.compressed import CompressedCheckpoint
from orcaserve.checkpoint.converted import gguf_of, is_converted
from orcaserve.checkpoint.folder import FolderCheckpoint
from orcaserve.checkpoint.gguf import MAGIC, GGUFFile
from orcaserve.checkpoint.gguf_config import ROPE_TENSORS, config_of, generation_config_of
from orcaserve.checkpoint.gptq import GptqCheckpoint
from orcaserve.checkpoint.quantised import SETTINGS, QuantisedFolder, method_of
from orcaserve.checkpoint.tensor_info import TensorInfo
from orcaserve.core.errors import CheckpointError, ModelNotFound, UnsupportedModel


class Checkpoint(Protocol):
    """An open checkpoint.

    config: the names and values of transformers' config.json; of a GGUF file, translated.
    generation_config: of generation_config.json, empty without one.
    tensors: the parameters by the names of the format; shapes are torch's in both.
    tokenizer_eos_ids: what the tokenizer's files say ends a text.
    """

    @property
    def path(self) -> Path: ...
    @property
    def format(self) -> Literal["gguf", "safetensors"]: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def generation_config(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...
    @property
    def tokenizer_eos_ids(self) -> list[int]: ...

    def read(self, name: str, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """The tensor as float32, into `out` (contiguous, same shape) if given. KeyError if there is none."""

    def stored(self, name: str, rows: Sequence[range] | None = None) -> NDArray[np.uint8]:
        """A copy of the bytes [rows, bytes of a row] of all rows, or of `rows`. KeyError if there is no such tensor."""

    def close(self) -> None: ...


class GGUFCheckpoint:
    """A model in one GGUF file. Attributes as in `Checkpoint`."""

    format: Literal["gguf"] = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = GGUFFile(path)
        self.config = config_of(self.file.metadata, self.file.tensors, self.file.read)
        self.generation_config = generation_config_of(self.file.metadata)
        self.tokenizer_eos_ids: list[int] = []  # a GGUF file has one place for them: generation_config has it
        self.tensors = {name: info for name, info in self.file.tensors.items() if name not in ROPE_TENSORS}

    def read(self, name: str, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        return self.file.read(name, out)

    def stored(self, name: str, rows: Sequence[range] | None = None) -> NDArray[np.uint8]:
        return self.file.stored(name, rows)

    def close(self) -> None:
        self.file.close()


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file, a checkpoint folder, or a folder with one GGUF file.

    Raises ModelNotFound, CheckpointError (damaged or contradictory files) or UnsupportedModel.
    """
    if is_converted(path):
        raise UnsupportedModel(f"{path.name} was converted for the CPU's kernels: it can be served there and no more")
    if path.is_dir():
        if (path / "config.json").exists():
            return _seen_as_blocks(FolderCheckpoint(path))
        path = gguf_of(path)
    if not path.is_file():
        raise ModelNotFound(f"{path} is neither a file nor a folder")
    if path.suffix == ".safetensors":
        raise UnsupportedModel(f"{path.name} alone is no model: give the folder that holds it and its config.json")
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise CheckpointError(f"{path.name} is not a GGUF file")
    return GGUFCheckpoint(path)


_QUANTISED: dict[str, type[QuantisedFolder]] = {
    "gptq": GptqCheckpoint,
    "awq": AwqCheckpoint,
    "compressed-tensors": CompressedCheckpoint,
}


def _seen_as_blocks(folder: FolderCheckpoint) -> Checkpoint:
    """The folder, or what its quantised weights are seen through. Raises UnsupportedModel."""
    if folder.config.get(SETTINGS) is None:
        return folder
    method = method_of(folder.config)
    view = _QUANTISED.get(method) if isinstance(method, str) else None
    if view is None:
        folder.close()
        supported = ", ".join(_QUANTISED)
        raise UnsupportedModel(f"{SETTINGS}: weights of quant_method {method!r} are not supported; {supported} are")
    return view(folder)


def eos_ids(checkpoint: Checkpoint) -> frozenset[int]:
    """The ids that end a text: the union of what generation config, config and tokenizer say (an id, a list, or null).

    Raises CheckpointError for anything else.
    """
    ids: set[int] = set(checkpoint.tokenizer_eos_ids)
    for name, config in (("generation config", checkpoint.generation_config), ("config", checkpoint.config)):
        value = config.get("eos_token_id")
        listed = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(token) is int and token >= 0 for token in listed):
            raise CheckpointError(f"the eos_token_id of the {name} is neither an id nor a list of ids")
        ids.update(listed)
    return frozenset(ids)
