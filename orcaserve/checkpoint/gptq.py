"""GptqCheckpoint: a folder of GPTQ's 4-bit weights.

A Linear `x` of such a folder is
    x.qweight  int32 [n_in / 8, n_out]       eight inputs in a number, the first one in its lowest bits
    x.qzeros   int32 [n_groups, n_out / 8]   eight outputs in a number, likewise
    x.scales   float16 [n_groups, n_out]
    x.g_idx    int32 [n_in]                  the group of each input; without it they are in order
and a weight is (nibble - zero) * scale. As in the files, zeros are 1 greater than what is stored, but not in the newer
form "gptq_v2".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from orcaserve.checkpoint.quantised import (
    BLOCK,
    PER_WORD,
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
_PARTS = ("qweight", "qzeros", "scales", "g_idx")
_FORMS = {"gptq": 1, "gptq_v2": 0}  # what a stored zero lacks


class GptqCheckpoint(QuantisedFolder):
    """Raises UnsupportedModel for other numbers of bits and for inputs whose groups are mixed (act-order),
    CheckpointError if tensors are missing or disagree.
    """

    def _find_linears(self, settings: Mapping[str, Any]) -> None:
        bits = settings.get("bits")
        if bits != BITS:
            raise UnsupportedModel(f"GPTQ with {bits!r} bits is not supported; {BITS} are")
        form = settings.get("checkpoint_format") or "gptq"
        if not isinstance(form, str) or form not in _FORMS:
            raise UnsupportedModel(f"GPTQ's checkpoint_format {form!r} is not supported; {', '.join(_FORMS)} are")
        self._zero = _FORMS[form]
        self._group_size = group_size_of(settings)
        for name in self._folder.tensors:
            linear, _, part = name.rpartition(".")
            if part == "qweight":
                self._add(linear, self._check(linear), "INT4", _PARTS)

    def _check(self, linear: str) -> tuple[int, int]:
        """The weight's sizes [n_out, n_in]. Raises as the class says."""
        words, n_out = self._info(f"{linear}.qweight", ("I32",)).shape
        n_in = words * PER_WORD
        if n_in == 0 or n_in % BLOCK or n_out == 0 or n_out % PER_WORD:
            raise UnsupportedModel(f"{linear} has {n_in} inputs and {n_out} outputs: not whole blocks of {BLOCK} and 8")
        n_groups = n_groups_of("GPTQ", n_in, self._group_size)
        self._info(f"{linear}.qzeros", ("I32",), (n_groups, n_out // PER_WORD))
        self._info(f"{linear}.scales", ("F16",), (n_groups, n_out))
        if self._has(f"{linear}.g_idx"):
            self._info(f"{linear}.g_idx", ("I32",), (n_in,))
        return n_out, n_in

    def _blocks(self, linear: str, shape: tuple[int, int], rows: Rows) -> Bytes:
        n_out, n_in = shape
        outputs = chosen(rows, n_out)
        scales = self._floats(f"{linear}.scales")
        zeros = nibbles_of(self._integers(f"{linear}.qzeros", "<u4"))[:, outputs] + np.float32(self._zero)
        group = self._groups(n_in, len(scales), self._group_size, f"{linear}.g_idx")
        words = self._columns(f"{linear}.qweight", "<u4", rows).T  # outputs are columns in the files
        return blocks_of(halves_of(nibbles_of(words)), scales[:, outputs][group].T, zeros[group].T)
