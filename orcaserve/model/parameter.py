"""Parameter: one tensor of a checkpoint as the skeleton wants it, read when somebody asks for its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orcaserve.checkpoint.checkpoint import Checkpoint
from orcaserve.checkpoint.dequantise import BLOCK_NUMBERS, block_numbers, columns, dequantise, is_finite
from orcaserve.core.errors import CheckpointError, UnsupportedModel

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Cut:
    """The share of a tensor [rows, width] or [rows] that is wanted: runs of its rows, and a run of its width or all."""

    rows: tuple[range, ...]
    columns: range | None = None


class Parameter:
    """One tensor [rows, width] or [rows] whose sizes are right, or a cut of it.

    kind: how its numbers are stored, a name such as F32 or Q4_1. transposed: the file has [width, rows].
    n_inputs: the whole tensor's width. inputs: which of its columns these are.
    n_turned: number of heads whose rows the file stores as pairs (i, i + half) side by side, 0 for none; here they lie
    as the skeleton wants them, first halves before second halves. turned_dim: of a head's first rows, 0 = of all.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        name: str,
        transposed: bool = False,
        n_turned: int = 0,
        cut: Cut | None = None,
        turned_dim: int = 0,
    ) -> None:
        info = checkpoint.tensors[name]
        self.name = name
        self.kind = info.kind
        self.shape = info.shape[::-1] if transposed else info.shape
        self.transposed = transposed
        self._checkpoint = checkpoint
        self._n_turned, self._turned_dim = n_turned, turned_dim
        self._cut = cut
        self._stored_shape = info.shape
        self.n_inputs = self.shape[1] if len(self.shape) == 2 else 0
        self.inputs = range(self.n_inputs) if cut is None or cut.columns is None else cut.columns
        if cut is not None:
            width = self.shape[1:] if cut.columns is None else (len(cut.columns),)
            self.shape = (sum(map(len, cut.rows)), *width)

    def cut(self, cut: Cut) -> Parameter:
        """A cut of a parameter that is none yet."""
        assert self._cut is None
        return Parameter(self._checkpoint, self.name, self.transposed, self._n_turned, cut, self._turned_dim)

    def with_inputs(self, inputs: range) -> Parameter:
        """The same rows of other columns."""
        rows = (range(self.shape[0]),) if self._cut is None else self._cut.rows
        cut = Cut(rows, inputs)
        return Parameter(self._checkpoint, self.name, self.transposed, self._n_turned, cut, self._turned_dim)

    def floats(self) -> Floats:
        """Its numbers, contiguous. Raises CheckpointError if one is not finite, UnsupportedModel as `stored` does."""
        # The sum is one quick pass; it may overflow where no number is infinite, so it only arouses suspicion.
        with np.errstate(all="ignore"):
            numbers = self._read()
            suspicious = not np.isfinite(numbers.sum())
        if suspicious and not np.isfinite(numbers).all():
            raise self._not_finite()
        return self._in_order(np.ascontiguousarray(numbers.T) if self.transposed else numbers)

    def stored(self) -> Bytes:
        """Its rows as they are stored [rows, bytes of a row]: F32, BF16, kinds made of blocks.

        Raises CheckpointError if a number is not finite, UnsupportedModel if the cut goes through a block.
        """
        assert not self.transposed
        stored = self._stored()
        if not is_finite(self.kind, stored):
            raise self._not_finite()
        return self._in_order(stored)

    def _read(self) -> Floats:
        """As stored, [rows, width] or, if transposed, [width, rows]."""
        if self._cut is None:
            return self._checkpoint.read(self.name)
        numbers = np.empty(self.shape[::-1] if self.transposed else self.shape, np.float32)
        dequantise(self.kind, np.ascontiguousarray(self._stored()).reshape(-1), numbers.reshape(-1))
        return numbers

    def _stored(self) -> Bytes:
        """Bytes of the stored rows that are wanted, and of those the wanted ones."""
        if self._cut is None:
            return self._checkpoint.stored(self.name)
        rows, columns = self._cut.rows, None if self._cut.columns is None else (self._cut.columns,)
        if self.transposed:
            rows, columns = columns or (range(self._stored_shape[0]),), rows
        stored = self._checkpoint.stored(self.name, rows)
        if columns is None:
            return stored
        block = block_numbers(self.kind)
        if any(run.start % block or run.stop % block for run in columns):
            raise UnsupportedModel(
                f"tensor {self.name} of kind {self.kind} cannot be cut: its blocks hold {block} numbers; "
                "another --tensor-parallel-size may do"
            )
        block_bytes = stored.shape[1] * block // self._stored_shape[1]
        parts = [stored[:, run.start // block * block_bytes : run.stop // block * block_bytes] for run in columns]
        return np.ascontiguousarray(np.concatenate(parts, axis=1))

    def columns(self, inputs: Sequence[int]) -> Floats:
        """Its numbers [rows, inputs] of these columns, counted in the whole tensor."""
        if self.kind not in BLOCK_NUMBERS or self.transposed:
            whole = block_numbers(self.kind) > 1 and not self.transposed  # the cut may go through blocks
            numbers = self.with_inputs(range(self.n_inputs)) if whole else self
            return np.ascontiguousarray(numbers.floats()[:, [i - numbers.inputs.start for i in inputs]])
        stored = self._checkpoint.stored(self.name, None if self._cut is None else self._cut.rows)
        return self._in_order(columns(self.kind, stored, inputs))

    def _in_order(self, rows: np.ndarray) -> np.ndarray:
        if self._n_turned == 0:
            return rows
        heads = rows.reshape(self._n_turned, -1, *rows.shape[1:])
        dim = self._turned_dim or heads.shape[1]
        ordered = heads.copy()
        ordered[:, : dim // 2], ordered[:, dim // 2 : dim] = heads[:, 0:dim:2], heads[:, 1:dim:2]
        return ordered.reshape(rows.shape)

    def _not_finite(self) -> CheckpointError:
        return CheckpointError(f"tensor {self.name} holds values that are not finite numbers")
