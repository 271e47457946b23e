"""MappedFile: a checkpoint file mapped into memory, read as float32 tensor by tensor."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orcaserve.checkpoint.dequantise import dequantise
from orcaserve.checkpoint.tensor_info import TensorInfo
from orcaserve.core.errors import CheckpointError, ModelNotFound


class MappedFile:
    """The bytes of one file. Raises ModelNotFound if it cannot be read, CheckpointError if it is almost empty."""

    def __init__(self, path: Path, least_bytes: int) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.size = file.seek(0, 2)
                if self.size < least_bytes:
                    raise CheckpointError(f"{path.name} is too short ({self.size} bytes) to be a checkpoint")
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelNotFound(f"{path} cannot be read: {error.strerror}") from error

    def read(self, info: TensorInfo, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """The tensor as float32, written to `out` (contiguous, of the same shape) if given.

        Raises UnsupportedModel for a kind of number that models are not made of.
        """
        if out is None:
            out = np.empty(info.shape, np.float32)
        assert out.shape == info.shape and out.flags.c_contiguous
        stored = np.frombuffer(self.data, np.uint8)[info.offset : info.offset + info.n_bytes]
        dequantise(info.kind, stored, out.reshape(-1))
        self.forget(info)
        return out

    def stored(self, info: TensorInfo, rows: Sequence[range] | None = None) -> NDArray[np.uint8]:
        """A copy of the tensor's bytes as they are stored, one row of its shape per row: of all, or of `rows` alone."""
        whole = self.mapped(info).reshape(info.shape[0], -1)
        copy = whole.copy() if rows is None else np.concatenate([whole[run.start : run.stop] for run in rows])
        self.forget(info)
        return copy

    def mapped(self, info: TensorInfo) -> NDArray[np.uint8]:
        """The tensor's bytes as they lie in the file, read-only and not copied."""
        return np.frombuffer(self.data, np.uint8)[info.offset : info.offset + info.n_bytes]

    def forget(self, info: TensorInfo) -> None:
        """Tell the system that these pages are not needed again: they would count as this process's memory."""
        if hasattr(mmap, "MADV_DONTNEED"):
            start = info.offset // mmap.PAGESIZE * mmap.PAGESIZE
            self.data.madvise(mmap.MADV_DONTNEED, start, info.offset + info.n_bytes - start)

    def close(self) -> None:
        """Unmap. Nothing may be read afterwards."""
        self.data.close()
