"""FolderCheckpoint: a folder as transformers saves it: config.json beside one or several safetensors files.

Nothing here can run code: pickled weights (pytorch_model.bin) are refused, and no module of the folder is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from orcaserve.checkpoint.json_object import read_object
from orcaserve.checkpoint.safetensors import SafetensorsFile
from orcaserve.checkpoint.tensor_info import TensorInfo
from orcaserve.core.errors import CheckpointError, ModelNotFound, UnsupportedModel

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_SHARDS = 4096
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class FolderCheckpoint:
    """A checkpoint folder. Attributes as in `Checkpoint`."""

    format: Literal["safetensors"] = "safetensors"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = read_object(path / "config.json")
        self.generation_config = _optional(path / "generation_config.json")
        self._files: dict[str, SafetensorsFile] = {}  # tensor name -> the file that holds it
        if (path / SINGLE).exists():
            self._add(SafetensorsFile(path / SINGLE), None)
        elif (path / INDEX).exists():
            self._add_shards(read_object(path / INDEX))
        else:
            raise _no_weights(path)
        self.tensors: dict[str, TensorInfo] = {name: file.tensors[name] for name, file in self._files.items()}

    def _add(self, file: SafetensorsFile, expected: set[str] | None) -> None:
        """Take a file's tensors; `expected` are the names the index promises of it."""
        for name in file.tensors:
            if name in self._files:
                raise CheckpointError(f"tensor {name} is in {self._files[name].path.name} and in {file.path.name}")
            if expected is not None and name not in expected:
                raise CheckpointError(f"{file.path.name} holds tensor {name}, which {INDEX} does not name")
            self._files[name] = file
        for name in sorted(expected or ()):
            if name not in file.tensors:
                raise CheckpointError(f"{file.path.name} lacks tensor {name}, which {INDEX} promises")

    def _add_shards(self, index: dict[str, Any]) -> None:
        places = index.get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
            raise CheckpointError(f"{INDEX} has no weight_map from tensors to files")
        promised: dict[str, set[str]] = {}
        for name, file in places.items():
            promised.setdefault(file, set()).add(name)
        if len(promised) > MAX_SHARDS:
            raise CheckpointError(f"{INDEX} names {len(promised)} files, allowed are {MAX_SHARDS}")
        for file, names in sorted(promised.items()):
            if not file.endswith(".safetensors") or "/" in file or "\\" in file or "\0" in file:
                raise CheckpointError(f"{INDEX} names a file that is not a .safetensors file in the same folder")
            if not (self.path / file).exists():
                raise CheckpointError(f"{file} is missing: {INDEX} says that it holds {len(names)} tensors")
            self._add(SafetensorsFile(self.path / file), names)

    def read(self, name: str, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        return self._files[name].read(name, out)

    def stored(self, name: str, rows: Sequence[range] | None = None) -> NDArray[np.uint8]:
        return self._files[name].stored(name, rows)

    def columns(self, name: str, columns: Sequence[range]) -> NDArray[np.uint8]:
        """A copy of the bytes [rows, bytes of these columns] of a matrix. KeyError if `tensors` lacks it."""
        return self._files[name].columns(name, columns)

    @property
    def tokenizer_eos_ids(self) -> list[int]:
        """The id of the tokenizer's eos_token, if the folder says which one that is."""
        settings = _optional(self.path / "tokenizer_config.json")
        token = settings.get("eos_token")
        if isinstance(token, dict):
            token = token.get("content")
        if not isinstance(token, str):
            return []
        added = settings.get("added_tokens_decoder")
        for key, entry in added.items() if isinstance(added, dict) else ():
            if isinstance(entry, dict) and entry.get("content") == token and key.isdecimal():
                return [int(key)]
        return _id_in_tokenizer(_optional(self.path / "tokenizer.json"), token)

    def close(self) -> None:
        for file in set(self._files.values()):
            file.close()


def _id_in_tokenizer(tokenizer: dict[str, Any], token: str) -> list[int]:
    added = tokenizer.get("added_tokens")
    for entry in added if isinstance(added, list) else ():
        if isinstance(entry, dict) and entry.get("content") == token and type(entry.get("id")) is int:
            return [entry["id"]]
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict) and type(vocabulary.get(token)) is int:
        return [vocabulary[token]]
    if isinstance(vocabulary, list):  # Unigram: pairs of a piece and its score, in the order of ids
        return [i for i, pair in enumerate(vocabulary) if isinstance(pair, list) and pair[:1] == [token]][:1]
    return []


def _optional(path: Path) -> dict[str, Any]:
    return read_object(path) if path.exists() else {}


def _no_weights(path: Path) -> Exception:
    pickled = [file.name for pattern in _PICKLED for file in sorted(path.glob(pattern))]
    if pickled:
        return UnsupportedModel(
            f"{path.name} holds pickled weights only ({pickled[0]}), which could run any code when loaded: "
            "convert them to safetensors"
        )
    return ModelNotFound(f"{path} has neither {SINGLE} nor {INDEX}")
