"""TensorInfo: what a checkpoint's header says of one tensor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from orcaserve.core.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file, its place already checked against the file's size.

    shape: outermost dimension first, as torch prints it, whatever the file's own order is.
    kind: how its numbers are stored: a safetensors or GGUF name such as F32, BF16, Q4_1.
    offset, n_bytes: where its data lies, in bytes from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    n_bytes: int


def check_apart(tensors: Iterable[TensorInfo], file: str) -> None:
    """Raise CheckpointError if two tensors of a file share a byte."""
    in_order = sorted(tensors, key=lambda info: info.offset)
    for first, second in pairwise(in_order):
        if first.offset + first.n_bytes > second.offset:
            raise CheckpointError(f"{file}: tensors {first.name} and {second.name} overlap")
