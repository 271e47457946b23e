"""SafetensorsFile: the tensors of one safetensors file.

    header length u64 | header, JSON: name -> {dtype, shape, data_offsets [begin, end]} | data; offsets count from there

Everything the header claims is compared with the file's size before it is used; there is no code in such a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orcaserve.checkpoint.json_object import parse_object
from orcaserve.checkpoint.mapped_file import MappedFile
from orcaserve.checkpoint.tensor_info import TensorInfo, check_apart
from orcaserve.core.errors import CheckpointError, UnsupportedModel

MAX_HEADER = 100 << 20
ALIGNMENT = 64  # of the data in files that are written here
MAX_DIMENSIONS = 8
ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip


class SafetensorsFile:
    """One open file; reads its header at once, its tensors when asked.

    tensors: name -> TensorInfo. metadata: the texts its writer put beside them.
    Raises ModelNotFound, CheckpointError (damaged) and UnsupportedModel (kind of number).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path, least_bytes=10)
        size = self._file.size
        length = int.from_bytes(self._file.data[:8], "little")
        data = 8 + length
        if length > MAX_HEADER or data > size:
            raise CheckpointError(f"{path.name} claims a header of {length} bytes, more than it can hold")
        header = parse_object(self._file.data[8:data], path.name)
        metadata = header.pop("__metadata__", None)
        self.metadata: dict[str, Any] = metadata if isinstance(metadata, dict) else {}
        self.tensors = {name: self._entry(name, entry, data) for name, entry in header.items()}
        check_apart(self.tensors.values(), path.name)
        used = sum(info.n_bytes for info in self.tensors.values())
        if data + used != size:
            raise CheckpointError(f"{path.name} has {size - data} bytes of data, its tensors fill {used}")

    def _entry(self, name: str, entry: Any, data: int) -> TensorInfo:
        where = f"{self.path.name}: tensor {name}"
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise CheckpointError(f"{where} is not described by dtype, shape and data_offsets")
        kind, shape, place = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(kind, str) or kind not in ITEM_BYTES:
            raise UnsupportedModel(f"{where} has a kind of number that is not supported; {', '.join(ITEM_BYTES)} are")
        if not (_are_sizes(shape) and _are_sizes(place) and len(place) == 2 and len(shape) <= MAX_DIMENSIONS):
            raise CheckpointError(f"{where} has a malformed shape or place")
        n_bytes = ITEM_BYTES[kind]
        for n in shape:
            n_bytes *= n
        begin, end = place
        if end - begin != n_bytes or data + end > self._file.size:
            raise CheckpointError(f"{where} of shape {shape} needs {n_bytes} bytes, its place is {begin} to {end}")
        return TensorInfo(name, tuple(shape), kind, data + begin, n_bytes)

    def read(self, name: str, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """The tensor as float32, into `out` (contiguous, same shape) if given. KeyError if `tensors` lacks it."""
        return self._file.read(self.tensors[name], out)

    def stored(self, name: str, rows: Sequence[range] | None = None) -> NDArray[np.uint8]:
        """A copy of the bytes [rows, bytes of a row] of all rows, or of `rows`. KeyError if `tensors` lacks it."""
        return self._file.stored(self.tensors[name], rows)

    def columns(self, name: str, columns: Sequence[range]) -> NDArray[np.uint8]:
        """A copy of the bytes [rows, bytes of these columns] of a matrix. KeyError if `tensors` lacks it."""
        numbers = self.mapped(name).reshape(*self.tensors[name].shape, -1)
        copy = np.concatenate([numbers[:, run.start : run.stop] for run in columns], axis=1)
        self.forget(name)
        return copy.reshape(len(copy), -1)

    def mapped(self, name: str) -> NDArray[np.uint8]:
        """Its bytes, in one dimension, read-only and not copied: the file must stay open. KeyError as above."""
        return self._file.mapped(self.tensors[name])

    def forget(self, name: str) -> None:
        """Its bytes will not be needed again soon: they no longer count as this process's memory. KeyError as above."""
        self._file.forget(self.tensors[name])

    def close(self) -> None:
        self._file.close()


def write_bytes(path: Path, arrays: Mapping[str, NDArray[np.uint8]], metadata: Mapping[str, str]) -> None:
    """Write a file of tensors U8 of one dimension, each starting at a multiple of ALIGNMENT bytes.

    arrays: contiguous, of one dimension; they are filled up with zeros to a multiple of ALIGNMENT, and so recorded.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + -(-array.size // ALIGNMENT) * ALIGNMENT
        header[name] = {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for array in arrays.values():
            file.write(array.data)
            file.write(bytes(-array.size % ALIGNMENT))


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)
