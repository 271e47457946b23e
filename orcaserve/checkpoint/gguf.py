"""GGUFFile: the metadata and tensors of one GGUF file, versions 2 and 3, little-endian.

    magic "GGUF" | version u32 | tensors u64 | pairs u64
    pairs:    key string | type u32 | value                     string = length u64, UTF-8 bytes
    tensors:  name string | n u32 | n sizes u64, innermost first | kind u32 | offset u64
    padding to general.alignment, then the data; offsets count from there

The file is taken to be hostile: every size is a Python integer compared with the file's own size before it is used, so
nothing is read or allocated that the file does not hold.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orcaserve.checkpoint.gguf_experts import experts_apart
from orcaserve.checkpoint.mapped_file import MappedFile
from orcaserve.checkpoint.tensor_info import TensorInfo, check_apart
from orcaserve.core.errors import CheckpointError, UnsupportedModel

MAGIC = b"GGUF"
MAX_PAIRS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_SHOWN = 300  # characters of an error
MAX_NAME = 1 << 10  # bytes of a key's or tensor's name
MAX_STRINGS = 1 << 23  # entries of an array of strings: each costs far more here than in the file
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 16
DEFAULT_ALIGNMENT = 32

# kind number -> name, numbers in a block, bytes of a block
KINDS: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_BOOL, _STRING, _ARRAY = 7, 8, 9
_PAIRS_START = 24
# type number -> numpy type of a number in the metadata
_NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("<u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}


class GGUFFile:
    """One open GGUF file; reads its header at once, its tensors when asked.

    metadata: key -> int, float, bool, str, list of str (or of lists), or a numpy array of numbers.
    tensors: name -> TensorInfo; experts have theirs each for itself (gguf_experts.py).
    Raises ModelNotFound, CheckpointError (damaged) and UnsupportedModel (versions, kinds).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path, least_bytes=24)
        header = _Header(self._file.data, path.name)
        self.version = header.version
        self.metadata = header.metadata
        self.tensors = experts_apart(header.tensors.values(), path.name)
        self._pairs_end = header.pairs_end

    def read(self, name: str, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """The tensor as float32, into `out` (contiguous, same shape) if given. KeyError if `tensors` lacks it."""
        return self._file.read(self.tensors[name], out)

    def stored(self, name: str, rows: Sequence[range] | None = None) -> NDArray[np.uint8]:
        """A copy of the bytes [rows, bytes of a row] of all rows, or of `rows`. KeyError if `tensors` lacks it."""
        return self._file.stored(self.tensors[name], rows)

    def without_tensors(self) -> bytes:
        """A GGUF file of the same metadata that has no tensors."""
        pairs = self._file.data[_PAIRS_START : self._pairs_end]
        return MAGIC + _U32.pack(self.version) + _U64.pack(0) + self._file.data[16:_PAIRS_START] + pairs

    def close(self) -> None:
        self._file.close()


class _Header:
    """Reads a file's header front to back. `_at` never passes `_size`."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self._data, self._size, self._at, self._file = data, len(data), 0, name
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        if self._take(4) != MAGIC:
            raise CheckpointError(f"{name} is not a GGUF file")
        self.version = self._u32()
        if self.version not in (2, 3):
            big = " (or a big-endian file)" if self.version & 0xFFFF == 0 else ""
            raise UnsupportedModel(f"{name}: GGUF version {self.version}{big}; versions 2 and 3, little-endian, are")
        n_tensors, n_pairs = self._u64(), self._u64()
        self._check_count("tensors", n_tensors, MAX_TENSORS, least_bytes=32)
        self._check_count("metadata keys", n_pairs, MAX_PAIRS, least_bytes=13)
        for _ in range(n_pairs):
            self._read_pair()
        self.pairs_end = self._at
        self._read_tensors(n_tensors)

    def _fail(self, text: str) -> CheckpointError:
        # Names come from the file: a damaged one must not write to somebody's terminal what it likes.
        shown = "".join(c if c.isprintable() else "?" for c in text)
        return CheckpointError(f"{self._file}: {shown if len(shown) <= MAX_SHOWN else shown[:MAX_SHOWN] + '...'}")

    def _advance(self, n_bytes: int) -> int:
        """Step over `n_bytes` that the file must have; the place where they start."""
        start, end = self._at, self._at + n_bytes
        if end > self._size:
            raise self._fail(f"ends in the middle of its header (needs {end} bytes, has {self._size})")
        self._at = end
        return start

    def _take(self, n_bytes: int) -> bytes:
        start = self._advance(n_bytes)
        return self._data[start : self._at]

    def _u32(self) -> int:
        value: int = _U32.unpack_from(self._data, self._advance(4))[0]
        return value

    def _u64(self) -> int:
        value: int = _U64.unpack_from(self._data, self._advance(8))[0]
        return value

    def _check_count(self, what: str, count: int, most: int, least_bytes: int) -> None:
        if count > most or count * least_bytes > self._size - self._at:
            raise self._fail(f"claims {count} {what}, more than it can hold")

    def _text(self, raw: bytes, what: str) -> str:
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise self._fail(f"{what} is not UTF-8") from error

    def _name(self, what: str) -> str:
        length = self._u64()
        if not 0 < length <= MAX_NAME:
            raise self._fail(f"the name of a {what} has {length} bytes, allowed are 1 to {MAX_NAME}")
        return self._text(self._take(length), f"the name of a {what}")

    def _read_pair(self) -> None:
        key = self._name("key")
        if key in self.metadata:
            raise self._fail(f"metadata key {key!r} occurs twice")
        self.metadata[key] = self._value(key, self._u32())

    def _value(self, key: str, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self._text(self._take(self._u64()), key)
        if kind == _ARRAY:
            return self._array(key, depth + 1)
        value = self._numbers(key, kind, 1)[0]
        return value.item()

    def _numbers(self, key: str, kind: int, count: int) -> NDArray[Any]:
        if kind not in _NUMBERS:
            raise self._fail(f"{key} has unknown type {kind}")
        dtype = _NUMBERS[kind]
        start = self._advance(count * dtype.itemsize)
        numbers = np.frombuffer(self._data, dtype, count, start).copy()
        if kind != _BOOL:
            return numbers
        if numbers.size and numbers.max() > 1:
            raise self._fail(f"{key} holds a boolean that is neither 0 nor 1")
        return numbers.astype(np.bool_)

    def _array(self, key: str, depth: int) -> Any:
        kind, count = self._u32(), self._u64()
        if kind == _STRING:
            self._check_count(f"strings in {key}", count, MAX_STRINGS, least_bytes=8)
            return self._strings(key, count)
        if kind != _ARRAY:
            return self._numbers(key, kind, count)
        if depth > 2:
            raise self._fail(f"{key} nests arrays too deeply")
        self._check_count(f"arrays in {key}", count, MAX_PAIRS, least_bytes=12)
        return [self._array(key, depth + 1) for _ in range(count)]

    def _strings(self, key: str, count: int) -> list[str]:
        """Vocabularies have 10^5 entries and more, so this one loop does without the helpers above."""
        data, size, at, length_at = self._data, self._size, self._at, _U64.unpack_from
        strings: list[str] = []
        try:
            for _ in range(count):
                end = at + 8 + length_at(data, at)[0]
                if end > size:
                    raise self._fail(f"{key} ends outside the file")
                strings.append(str(data[at + 8 : end], "utf-8"))
                at = end
        except UnicodeDecodeError as error:
            raise self._fail(f"{key} holds a string that is not UTF-8") from error
        except struct.error as error:
            raise self._fail(f"{key} ends outside the file") from error
        self._at = at
        return strings

    def _read_tensors(self, count: int) -> None:
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise self._fail("general.alignment is not a power of two")
        entries = [self._tensor_entry() for _ in range(count)]
        data = -(-self._at // alignment) * alignment
        for name, shape, kind, offset, n_bytes in entries:
            if offset % alignment:
                raise self._fail(f"tensor {name} starts at {offset}, not a multiple of {alignment}")
            if data + offset + n_bytes > self._size:
                raise self._fail(f"tensor {name} ends at byte {data + offset + n_bytes} of {self._size}")
            if name in self.tensors:
                raise self._fail(f"tensor {name} occurs twice")
            self.tensors[name] = TensorInfo(name, shape, kind, data + offset, n_bytes)
        check_apart(self.tensors.values(), self._file)

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], str, int, int]:
        name = self._name("tensor")
        n_dimensions = self._u32()
        if not 0 < n_dimensions <= MAX_DIMENSIONS:
            raise self._fail(f"tensor {name} has {n_dimensions} dimensions, allowed are 1 to {MAX_DIMENSIONS}")
        sizes = [self._u64() for _ in range(n_dimensions)]
        kind_number, offset = self._u32(), self._u64()
        if kind_number not in KINDS:
            raise UnsupportedModel(f"{self._file}: tensor {name} is of kind {kind_number}, which is not supported")
        kind, block_numbers, block_bytes = KINDS[kind_number]
        n_numbers = 1
        for n in sizes:
            n_numbers *= n
        if n_numbers == 0 or sizes[0] % block_numbers:
            raise self._fail(f"tensor {name} of sizes {sizes} cannot be stored in blocks of {block_numbers} ({kind})")
        return name, tuple(reversed(sizes)), kind, offset, n_numbers // block_numbers * block_bytes
