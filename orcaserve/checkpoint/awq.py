"""AwqCheckpoint: a folder of AWQ's 4-bit weights, in the form that AutoAWQ calls "gemm".

A Linear `x` of such a folder is
    x.qweight  int32 [n_in, n_out / 8]       eight outputs in a number, from its lowest bits on the first, third, fifth,
                                             seventh, second, fourth, sixth and eighth of them
    x.qzeros   int32 [n_groups, n_out / 8]   likewise
    x.scales   float16 or bfloat16 [n_groups, n_out]
and a weight is (nibble - zero) * scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orcaserve.checkpoint.quantised import (
    PER_WORD,
    SETTINGS,
    Bytes,
    QuantisedFolder,
    Rows,
    blocks_of,
    chosen,
    group_size_of,
    halves_of,
    n_groups_of,
    nibbles_of,
)
from orcaserve.core.errors import UnsupportedModel

BITS = 4
VERSION = "gemm"
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_PARTS = ("qweight", "qzeros", "scales")


class AwqCheckpoint(QuantisedFolder):
    """Raises UnsupportedModel for other versions and numbers of bits, CheckpointError if tensors are missing or
    disagree.
    """

    def _find_linears(self, settings: Mapping[str, Any]) -> None:
        version, bits = settings.get("version", VERSION), settings.get("bits")
        if not isinstance(version, str) or version.lower() != VERSION:
            raise UnsupportedModel(f"AWQ of version {version!r} is not supported; {VERSION} is")
        if bits != BITS:
            raise UnsupportedModel(f"AWQ with {bits!r} bits is not supported; {BITS} are")
        if settings.get("zero_point", True) is not True:
            raise UnsupportedModel(f"{SETTINGS}: AWQ without zero_point is not supported")
        self._group_size = group_size_of(settings)
        for name in self._folder.tensors:
            linear, _, part = name.rpartition(".")
            if part == "qweight":
                self._add(linear, self._check(linear), "INT4", _PARTS)

    def _check(self, linear: str) -> tuple[int, int]:
        """The weight's sizes [n_out, n_in]. Raises as the class says."""
        n_in, words = self._info(f"{linear}.qweight", ("I32",)).shape
        n_groups = n_groups_of("AWQ", n_in, self._group_size)
        self._info(f"{linear}.qzeros", ("I32",), (n_groups, words))
        self._info(f"{linear}.scales", ("F16", "BF16"), (n_groups, words * PER_WORD))
        return words * PER_WORD, n_in

    def _blocks(self, linear: str, shape: tuple[int, int], rows: Rows) -> Bytes:
        n_out, n_in = shape
        outputs = chosen(rows, n_out)
        scales = self._floats(f"{linear}.scales")[:, outputs]
        zeros = nibbles_of(self._integers(f"{linear}.qzeros", "<u4"), _ORDER)[:, outputs]
        if rows is None or any(run.start % PER_WORD or run.stop % PER_WORD for run in rows):
            numbers = nibbles_of(self._integers(f"{linear}.qweight", "<u4"), _ORDER)[:, outputs]
        else:
            words = [range(run.start // PER_WORD, run.stop // PER_WORD) for run in rows]
            numbers = nibbles_of(self._columns(f"{linear}.qweight", "<u4", words), _ORDER)
        group = self._groups(n_in, len(scales), self._group_size)
        return blocks_of(halves_of(numbers.T), scales[group].T, zeros[group].T)
