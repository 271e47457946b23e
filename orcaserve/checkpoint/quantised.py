"""QuantisedFolder: a checkpoint folder whose Linears lie in several tensors each, seen as one tensor of blocks.

The blocks are INT4 or INT8 (dequantise.py): 32 neighbouring inputs of an output with a float32 scale and zero, so that
a weight is (number - zero) * scale as in the files, and nothing after this module knows of the format.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from orcaserve.checkpoint.dequantise import dequantise
from orcaserve.checkpoint.folder import FolderCheckpoint
from orcaserve.checkpoint.tensor_info import TensorInfo
from orcaserve.core.errors import CheckpointError, UnsupportedModel

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Rows = Sequence[range] | None

BLOCK = 32
PER_WORD = 8  # 4-bit numbers in an int32
SETTINGS = "quantization_config"


class QuantisedFolder(ABC):
    """A checkpoint folder. Attributes as in `Checkpoint`. It owns `folder`; closes it if it cannot be made.

    A subclass adds the Linears when it is made, from the files' headers alone, and gives their blocks when asked.
    """

    format: Literal["safetensors"] = "safetensors"

    def __init__(self, folder: FolderCheckpoint) -> None:
        self._folder = folder
        self.path: Path = folder.path
        self.config = {key: value for key, value in folder.config.items() if key != SETTINGS}
        self.generation_config = folder.generation_config
        self.tensors: dict[str, TensorInfo] = dict(folder.tensors)
        self._linears: dict[str, str] = {}  # the weight's name -> the Linear's
        try:
            self._find_linears(folder.config[SETTINGS])
        except BaseException:
            folder.close()
            raise

    @abstractmethod
    def _find_linears(self, settings: Mapping[str, Any]) -> None:
        """Call `_add` for each. Raises UnsupportedModel or CheckpointError."""

    @abstractmethod
    def _blocks(self, linear: str, shape: tuple[int, int], rows: Rows) -> Bytes:
        """[outputs, bytes of their blocks] of all outputs, or of `rows`."""

    def _add(self, linear: str, shape: tuple[int, int], kind: str, parts: Sequence[str]) -> None:
        """See a Linear as one tensor [n_out, n_in] instead of its parts."""
        taken = [self.tensors.pop(f"{linear}.{part}", None) for part in parts]
        weight = f"{linear}.weight"
        if weight in self.tensors:
            raise CheckpointError(f"tensors {weight} and {linear}.{parts[0]} are the same parameter")
        if shape[1] % BLOCK or 0 in shape:
            raise UnsupportedModel(f"{linear} has {shape[1]} inputs: not whole blocks of {BLOCK}")
        self._linears[weight] = linear
        n_bytes = sum(info.n_bytes for info in taken if info is not None)
        self.tensors[weight] = TensorInfo(weight, shape, kind, 0, n_bytes)

    def _info(self, name: str, kinds: Sequence[str], *sizes: tuple[int, ...]) -> TensorInfo:
        """Of a tensor that must be there. sizes: those it may have; without, it is a matrix.

        Raises CheckpointError, or UnsupportedModel if it is of another kind.
        """
        info = self._folder.tensors.get(name)
        if info is None:
            raise CheckpointError(f"tensor {name} is missing")
        if info.kind not in kinds:
            raise UnsupportedModel(
                f"tensor {name} holds numbers of kind {info.kind}; supported is {' or '.join(kinds)}"
            )
        if info.shape not in sizes if sizes else len(info.shape) != 2:
            expected = " or ".join(str(list(shape)) for shape in sizes) or "two"
            raise CheckpointError(f"tensor {name} has sizes {list(info.shape)}, must have {expected}")
        return info

    def _has(self, name: str) -> bool:
        return name in self._folder.tensors

    def _integers(self, name: str, dtype: str, rows: Rows = None) -> NDArray[Any]:
        """A tensor, or some rows of it."""
        stored, shape = self._folder.stored(name, rows), self._folder.tensors[name].shape
        return stored.reshape(-1).view(dtype).reshape(len(stored), *shape[1:])

    def _columns(self, name: str, dtype: str, columns: Rows) -> NDArray[Any]:
        """A matrix, or some columns of it."""
        if columns is None:
            return self._integers(name, dtype)
        return self._folder.columns(name, columns).view(dtype)

    def _floats(self, name: str, rows: Rows = None) -> Floats:
        stored, info = self._folder.stored(name, rows), self._folder.tensors[name]
        out = np.empty((len(stored), *info.shape[1:]), np.float32)
        dequantise(info.kind, np.ascontiguousarray(stored).reshape(-1), out.reshape(-1))
        return out

    def _groups(self, n_in: int, n_groups: int, group_size: int, name: str = "") -> NDArray[np.int64]:
        """The group of each block of inputs. name: of the tensor with the group of every input, if there is one."""
        if not self._has(name):
            return np.arange(n_in // BLOCK) * BLOCK // (n_in if group_size == -1 else group_size)
        groups = self._integers(name, "<i4").reshape(-1, BLOCK)
        if (groups != groups[:, :1]).any():
            raise UnsupportedModel(
                f"{name} mixes the groups of neighbouring inputs (act-order), which is not supported"
            )
        if groups.min() < 0 or groups.max() >= n_groups:
            raise CheckpointError(f"tensor {name} names groups outside of 0..{n_groups - 1}")
        return groups[:, 0].astype(np.int64)

    def stored(self, name: str, rows: Rows = None) -> Bytes:
        if name not in self._linears:
            return self._folder.stored(name, rows)
        n_out, n_in = self.tensors[name].shape
        return self._blocks(self._linears[name], (n_out, n_in), rows)

    def read(self, name: str, out: Floats | None = None) -> Floats:
        if name not in self._linears:
            return self._folder.read(name, out)
        info = self.tensors[name]
        if out is None:
            out = np.empty(info.shape, np.float32)
        dequantise(info.kind, self.stored(name).reshape(-1), out.reshape(-1))
        return out

    @property
    def tokenizer_eos_ids(self) -> list[int]:
        return self._folder.tokenizer_eos_ids

    def close(self) -> None:
        self._folder.close()


def method_of(config: Mapping[str, Any]) -> Any:
    """What quantised the weights, if a config.json says so."""
    settings = config.get(SETTINGS)
    return settings.get("quant_method") if isinstance(settings, dict) else None


def group_size_of(settings: Mapping[str, Any]) -> int:
    """Inputs that share a scale; -1: all of them."""
    size = settings.get("group_size", -1)
    if type(size) is not int or (size != -1 and size < 1):
        raise CheckpointError(f"{SETTINGS}: group_size is neither -1 nor a positive number")
    return size


def n_groups_of(method: str, n_in: int, group_size: int) -> int:
    if group_size != -1 and group_size % BLOCK:
        raise UnsupportedModel(f"{method}'s group_size {group_size} is not supported; multiples of {BLOCK} are")
    return 1 if group_size == -1 else -(-n_in // group_size)


def blocks_of(numbers: Bytes, scales: Floats, zeros: NDArray[Any]) -> Bytes:
    """[outputs, bytes of a row] of INT4 or INT8.

    numbers: [outputs, blocks, 16] (halves, as Q4_1 has them) or [outputs, blocks, 32]. scales and zeros: one a block.
    """
    blocks = np.empty((*numbers.shape[:2], 8 + numbers.shape[2]), np.uint8)
    halves = np.stack([scales.astype("<f4"), zeros.astype("<f4")], axis=2)
    blocks[:, :, :8] = halves.view(np.uint8).reshape(*numbers.shape[:2], 8)
    blocks[:, :, 8:] = numbers
    return blocks.reshape(len(numbers), -1)


def nibbles_of(words: NDArray[Any], order: Sequence[int] = range(PER_WORD)) -> Bytes:
    """Words [..., n] -> 4-bit numbers [..., 8 n]. order: of the number at each place of a word, lowest bits first."""
    pairs = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, PER_WORD // 2)
    numbers = np.empty((*words.shape, PER_WORD), np.uint8)
    numbers[..., list(order[0::2])] = pairs & 15
    numbers[..., list(order[1::2])] = pairs >> 4
    return numbers.reshape(*words.shape[:-1], -1)


def halves_of(nibbles: Bytes) -> Bytes:
    """4-bit numbers [outputs, n_in] -> [outputs, blocks, 16], a block's first 16 in the low halves."""
    blocks = nibbles.reshape(len(nibbles), -1, BLOCK)
    halves: Bytes = blocks[:, :, : BLOCK // 2] | blocks[:, :, BLOCK // 2 :] << np.uint8(4)
    return halves


def chosen(rows: Rows, n: int) -> slice | NDArray[np.int64]:
    """Of n rows, an index that takes those."""
    return slice(0, n) if rows is None else np.concatenate([np.arange(run.start, run.stop) for run in rows])
