"""Tensors of the KServe v2 protocol, as JSON and as bytes behind it (the binary tensor extension).

    body = JSON | bytes of the first binary tensor | of the second | ...      Inference-Header-Content-Length: len(JSON)

An element of a BYTES tensor is its length, four bytes with the lowest first, and then its bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orcaserve.core.errors import InvalidRequest

MAX_TENSORS = 64  # of a request
MAX_ELEMENTS = 1024  # of a tensor: as many as there may be prompts
MAX_DIMENSIONS = 8
# datatype -> how struct writes an element
NUMBERS = {
    "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "FP16": "e", "FP32": "f", "FP64": "d", "BOOL": "?",
}  # fmt: skip
DATATYPES = (*NUMBERS, "BYTES")


@dataclass(frozen=True, slots=True)
class Tensor:
    """values: str (of BYTES), int, float or bool, in row-major order: as many as the shape says."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: tuple[Any, ...]


def read_tensors(inputs: Any, rest: bytes) -> list[Tensor]:
    """The tensors of `inputs`; `rest`: the bytes behind the JSON, which must be used up. Raises InvalidRequest."""
    if not isinstance(inputs, list) or not 1 <= len(inputs) <= MAX_TENSORS:
        raise _bad(f"inputs must be a list of 1 to {MAX_TENSORS} tensors")
    tensors, at = [], 0
    for item in inputs:
        if not isinstance(item, dict):
            raise _bad("each of the inputs must be an object")
        size = _binary_size(item)
        if size is not None and size > len(rest) - at:
            raise _bad("binary_data_size goes past the end of the body")
        tensors.append(_tensor(item, None if size is None else rest[at : at + size]))
        at += size or 0
    if at != len(rest):
        raise _bad("the body goes on behind the last tensor")
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise _bad("two of the inputs have the same name")
    return tensors


def write_bytes(texts: Sequence[str]) -> bytes:
    """The elements of a BYTES tensor."""
    return b"".join(struct.pack("<I", len(raw)) + raw for raw in (text.encode() for text in texts))


def _tensor(item: Mapping[str, Any], raw: bytes | None) -> Tensor:
    name, datatype, shape = item.get("name"), item.get("datatype"), item.get("shape")
    if not isinstance(name, str) or not name:
        raise _bad("each of the inputs needs a name")
    if datatype not in DATATYPES:
        raise _bad(f"the datatype of a tensor must be one of {', '.join(DATATYPES)}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
        raise _bad(f"the shape of a tensor must be a list of at most {MAX_DIMENSIONS} sizes")
    n = math.prod(shape)
    if n > MAX_ELEMENTS:
        raise _bad(f"a tensor holds at most {MAX_ELEMENTS} elements")
    if raw is None:
        values = _checked(datatype, _flat(item.get("data")))
    elif "data" in item:
        raise _bad("a tensor has data or binary_data_size, not both")
    else:
        values = _texts(raw) if datatype == "BYTES" else _numbers(raw, NUMBERS[datatype])
    if len(values) != n:
        raise _bad("a tensor does not hold as many elements as its shape says")
    return Tensor(name, datatype, tuple(shape), tuple(values))


def _binary_size(item: Mapping[str, Any]) -> int | None:
    parameters = item.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise _bad("the parameters of a tensor must be an object")
    size = parameters.get("binary_data_size")
    if size is not None and (type(size) is not int or size < 0):
        raise _bad("binary_data_size must be an integer of 0 or more")
    return size


def _flat(data: Any) -> list[Any]:
    """Data may be nested as the shape is, or flat."""
    if not isinstance(data, list):
        raise _bad("the data of a tensor must be a list")
    flat, waiting = [], [iter(data)]
    while waiting:
        for value in waiting[-1]:
            if isinstance(value, list):
                waiting.append(iter(value))
                break
            flat.append(value)
            if len(flat) > MAX_ELEMENTS:
                raise _bad(f"a tensor holds at most {MAX_ELEMENTS} elements")
        else:
            waiting.pop()
    return flat


def _checked(datatype: str, values: list[Any]) -> list[Any]:
    kinds = {"BYTES": (str,), "BOOL": (bool,)}.get(datatype, (int, float) if datatype.startswith("FP") else (int,))
    if not all(type(value) in kinds for value in values):
        raise _bad("the data of a tensor does not fit its datatype")
    return values


def _texts(raw: bytes) -> list[str]:
    texts: list[str] = []
    at = 0
    while at < len(raw):
        if at + 4 > len(raw):
            raise _bad("a BYTES tensor ends within the length of an element")
        (size,) = struct.unpack_from("<I", raw, at)
        element = raw[at + 4 : at + 4 + size]
        if len(element) != size:
            raise _bad("an element of a BYTES tensor goes past its end")
        if len(texts) >= MAX_ELEMENTS:
            raise _bad(f"a tensor holds at most {MAX_ELEMENTS} elements")
        try:
            texts.append(element.decode())
        except UnicodeDecodeError as error:
            raise _bad("an element of a BYTES tensor is not valid UTF-8 text") from error
        at += 4 + size
    return texts


def _numbers(raw: bytes, kind: str) -> list[Any]:
    size = struct.calcsize(kind)
    if len(raw) % size or len(raw) // size > MAX_ELEMENTS:
        raise _bad("the size of a tensor's bytes does not fit its shape")
    values = [value for (value,) in struct.iter_unpack(f"<{kind}", raw)]
    if not all(math.isfinite(value) for value in values):
        raise _bad("NaN and Infinity are not taken")
    return values


def _bad(message: str) -> InvalidRequest:
    return InvalidRequest("inputs", message)
