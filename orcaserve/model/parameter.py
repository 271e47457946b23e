"""Parameter: one tensor of a checkpoint as the skeleton wants it, read when somebody asks for its numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from orcaserve.checkpoint.checkpoint import Checkpoint
from orcaserve.checkpoint.dequantise import BLOCK_NUMBERS, columns, is_finite
from orcaserve.core.errors import CheckpointError

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class Parameter:
    """One tensor [rows, width] or [rows] whose sizes are right.

    kind: how its numbers are stored, a name such as F32 or Q4_1. transposed: the file has [width, rows].
    n_turned: number of heads whose rows the file stores as pairs (i, i + half) side by side, 0 for none; here they lie
    as the skeleton wants them, first halves before second halves.
    """

    def __init__(self, checkpoint: Checkpoint, name: str, transposed: bool = False, n_turned: int = 0) -> None:
        info = checkpoint.tensors[name]
        self.name = name
        self.kind = info.kind
        self.shape = info.shape[::-1] if transposed else info.shape
        self.transposed = transposed
        self._checkpoint = checkpoint
        self._n_turned = n_turned

    def floats(self) -> Floats:
        """Its numbers, contiguous. Raises CheckpointError if one is not finite."""
        # The sum is one quick pass; it may overflow where no number is infinite, so it only arouses suspicion.
        with np.errstate(all="ignore"):
            numbers = self._checkpoint.read(self.name)
            suspicious = not np.isfinite(numbers.sum())
        if suspicious and not np.isfinite(numbers).all():
            raise self._not_finite()
        return self._in_order(np.ascontiguousarray(numbers.T) if self.transposed else numbers)

    def stored(self) -> Bytes:
        """Its rows as they are stored [rows, bytes of a row]: F32, BF16, kinds made of blocks. Errors as above."""
        assert not self.transposed
        stored = self._checkpoint.stored(self.name)
        if not is_finite(self.kind, stored):
            raise self._not_finite()
        return self._in_order(stored)

    def columns(self, inputs: Sequence[int]) -> Floats:
        """Its numbers [rows, inputs] of these columns."""
        if self.kind not in BLOCK_NUMBERS or self.transposed:
            return np.ascontiguousarray(self.floats()[:, list(inputs)])
        return self._in_order(columns(self.kind, self._checkpoint.stored(self.name), inputs))

    def _in_order(self, rows: np.ndarray) -> np.ndarray:
        if self._n_turned == 0:
            return rows
        pairs = rows.reshape(self._n_turned, -1, 2, *rows.shape[1:])
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)

    def _not_finite(self) -> CheckpointError:
        return CheckpointError(f"tensor {self.name} holds values that are not finite numbers")
