"""CompressedCheckpoint: a folder of weights in integers, in the formats of compressed-tensors.

A module `x` whose format is "int-quantized" is
    x.weight             int8 [n_out, n_in]
or, if it is "pack-quantized" with 4 or 8 bits,
    x.weight_packed      int32 [n_out, n_in * bits / 32]   numbers of one output, the first in the lowest bits, each
                                                           greater by half of its range than the integer it stands for
    x.weight_shape       the two sizes
and beside either
    x.weight_scale       a float for each group of inputs of each output [n_out, n_groups]; or one for all
    x.weight_zero_point  if not symmetric, of the scale's sizes: int8; or int32, packed along the outputs
    x.weight_g_idx       int32 [n_in], the group of each input; -1 or missing: they are in order
A weight is (integer - zero point) * scale. x.input_scale and x.input_zero_point, of inputs measured beforehand, are not
used: inputs have scales of their own, worked out as they come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orcaserve.checkpoint.compressed_config import INT, PACKED, CompressedConfig, Scheme
from orcaserve.checkpoint.quantised import (
    BLOCK,
    Bytes,
    QuantisedFolder,
    Rows,
    blocks_of,
    chosen,
    halves_of,
    n_groups_of,
    nibbles_of,
)
from orcaserve.core.errors import CheckpointError

_NUMBERS = {INT: "weight", PACKED: "weight_packed"}
_PARTS = ("weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx", "input_scale", "input_zero_point")
_KINDS = {4: "INT4", 8: "INT8"}


class CompressedCheckpoint(QuantisedFolder):
    """Raises UnsupportedModel for formats and settings that are not known, CheckpointError if tensors are missing or
    disagree.
    """

    def _find_linears(self, settings: Mapping[str, Any]) -> None:
        config = CompressedConfig(settings)
        self._schemes: dict[str, Scheme] = {}
        for name, info in self._folder.tensors.items():
            module, _, part = name.rpartition(".")
            if part == _NUMBERS[PACKED] or (part == _NUMBERS[INT] and info.kind == "I8"):
                scheme = self._schemes[module] = config.scheme_of(module)
                shape = self._check(module, scheme)
                self._add(module, shape, _KINDS[scheme.bits], (_NUMBERS[scheme.format], *_PARTS))

    def _check(self, module: str, scheme: Scheme) -> tuple[int, int]:
        """The weight's sizes [n_out, n_in]. Raises as the class says."""
        numbers = f"{module}.{_NUMBERS[scheme.format]}"
        if scheme.format == INT:
            n_out, n_in = self._info(numbers, ("I8",)).shape
        else:
            n_out, n_words = self._info(numbers, ("I32",)).shape
            n_in = n_words * 32 // scheme.bits
            info = self._info(f"{module}.weight_shape", ("I64", "I32"), (2,))
            shape = self._integers(info.name, "<i8" if info.kind == "I64" else "<i4").tolist()
            if shape != [n_out, n_in]:
                raise CheckpointError(f"tensor {info.name} says {shape}, {numbers} holds {[n_out, n_in]}")
        n_groups = self._n_groups(n_in, scheme)
        sizes: list[tuple[int, ...]] = [(1,), (1, 1)] if scheme.per_tensor else [(n_out, n_groups)]
        if n_groups == 1 and not scheme.per_tensor:
            sizes.append((n_out,))
        self._info(f"{module}.weight_scale", ("F16", "BF16", "F32"), *sizes)
        zeros = f"{module}.weight_zero_point"
        if self._has(zeros) or not scheme.symmetric:
            if self._has(zeros) and self.tensors[zeros].kind == "I32" and scheme.format == PACKED:
                sizes = [(-(-n_out * scheme.bits // 32), n_groups)]
            self._info(zeros, ("I8", "I32") if scheme.format == PACKED else ("I8",), *sizes)
        if self._has(f"{module}.weight_g_idx"):
            self._info(f"{module}.weight_g_idx", ("I32",), (n_in,))
        return n_out, n_in

    def _blocks(self, linear: str, shape: tuple[int, int], rows: Rows) -> Bytes:
        n_out, n_in = shape
        scheme, outputs = self._schemes[linear], chosen(rows, n_out)
        n_groups = self._n_groups(n_in, scheme)
        scales = self._folder.read(f"{linear}.weight_scale").reshape(-1, n_groups)
        scales = np.broadcast_to(scales, (n_out, n_groups))[outputs]
        zeros = self._zero_points(f"{linear}.weight_zero_point", scheme, (n_out, n_groups))[outputs]
        stored = self._folder.stored(f"{linear}.{_NUMBERS[scheme.format]}", rows)
        if scheme.bits == 4:
            numbers, zeros = halves_of(nibbles_of(stored.view("<u4"))), zeros + 8
        else:
            integers = stored ^ np.uint8(128) if scheme.format == PACKED else stored
            numbers = integers.reshape(len(stored), -1, BLOCK)
        index = f"{linear}.weight_g_idx"
        in_order = not self._has(index) or (self._integers(index, "<i4") == -1).all()
        group = self._groups(n_in, n_groups, scheme.group_size, "" if in_order else index)
        return blocks_of(numbers, scales[:, group], zeros[:, group])

    def _n_groups(self, n_in: int, scheme: Scheme) -> int:
        return n_groups_of("compressed-tensors", n_in, scheme.group_size)

    def _zero_points(self, name: str, scheme: Scheme, shape: tuple[int, int]) -> NDArray[np.int32]:
        """Of all outputs [n_out, n_groups]. Raises CheckpointError if one is none of the integers there are."""
        if not self._has(name):
            return np.zeros(shape, np.int32)
        half = 1 << (scheme.bits - 1)
        if self._folder.tensors[name].kind == "I32":
            words = np.ascontiguousarray(self._integers(name, "<u4").T)
            numbers = nibbles_of(words) if scheme.bits == 4 else words.view(np.uint8)
            zeros = numbers[:, : shape[0]].T.astype(np.int32) - half
        else:
            zeros = self._integers(name, "i1").reshape(-1, shape[1]).astype(np.int32)
        if scheme.symmetric and zeros.any():
            raise CheckpointError(f"tensor {name} is not 0, but the weights should be symmetric")
        if zeros.min() < -half or zeros.max() >= half:
            raise CheckpointError(f"tensor {name} holds zero points outside of {-half}..{half - 1}")
        return np.broadcast_to(zeros, shape)
