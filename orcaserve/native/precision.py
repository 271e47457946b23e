"""Precision: in which numbers a model's matrices and its K/V are held, decided from the settings and the files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orcaserve.native.packing import Format

FULL_KINDS = frozenset({"F64", "F32", "F16", "BF16"})  # all others are quantised
INT4_KINDS = frozenset({"Q4_0", "Q4_1"})  # kept bit for bit
INT4_BLOCK = 32  # inputs that share a scale and a minimum
_FLOATS = {"float32": Format.FLOAT32, "bfloat16": Format.BFLOAT16}


@dataclass(frozen=True, slots=True)
class Precision:
    """dtype: of matrices that are not quantised. kv: float32, bfloat16 or int8.

    quantization: none; int8; int4; auto: int8 for a matrix that is quantised in the file, and for no other.
    why: one line for the user.
    """

    dtype: str
    quantization: str
    kv: str
    why: str

    def format(self, kinds: Iterable[str], width: int) -> Format:
        """How a matrix of `width` inputs whose parts are stored as `kinds` is held."""
        kinds = set(kinds)
        full = kinds <= FULL_KINDS
        if self.quantization == "none" or (self.quantization == "auto" and full):
            return _FLOATS[self.dtype]
        if self.quantization == "int4" and width % INT4_BLOCK == 0 and (full or kinds <= INT4_KINDS):
            return Format.INT4
        return Format.INT8


def choose_precision(dtype: str, quantization: str, kv_dtype: str, kinds: Iterable[str]) -> Precision:
    """The settings with every `auto` decided for files that store their matrices as `kinds`.

    `auto` keeps what the files hold: it never makes numbers of full precision coarser. float16 is held as float32,
    since bfloat16 could not hold it exactly; files that are quantised already go to int8, which is quicker than floats.
    """
    kinds = frozenset(kinds)
    quantised = kinds - FULL_KINDS
    if dtype == "auto":
        dtype = "bfloat16" if kinds == {"BF16"} else "float32"
    held = {"none": dtype, "auto": "int8" if quantised else dtype}.get(quantization, quantization)
    if quantization != "auto":
        why = "as asked for"
    elif quantised:
        why = f"the file is quantised ({', '.join(sorted(quantised))})"
    else:
        why = f"the file has full precision ({', '.join(sorted(kinds))})"
    kv = (dtype if held in _FLOATS else "int8") if kv_dtype == "auto" else kv_dtype
    return Precision(dtype, quantization, kv, f"weights in {held}, {why}; keys and values in {kv}")
