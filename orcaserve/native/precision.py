"""Precision: in which numbers a model's matrices and its K/V are held, decided from the settings and the files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from orcaserve.checkpoint.four_bits import KINDS as INT4_KINDS
from orcaserve.native.packing import INT4_BLOCK, Format

FULL_KINDS = frozenset({"F64", "F32", "F16", "BF16"})  # all others are quantised
_FLOATS = {"float32": Format.FLOAT32, "bfloat16": Format.BFLOAT16}


@dataclass(frozen=True, slots=True)
class Precision:
    """dtype: of matrices that are not quantised. kv: float32, bfloat16 or int8.

    quantization: none; int8; int4, of matrices that have four bits in the file, and of floats if rounds_floats, while
    others are int8; auto: int8 for a matrix that is quantised in the file, and for no other.
    rounds_floats: no matrix of the file is quantised. What a quantised file leaves in floats, most often the head, is
    what four bits would harm most.
    held: how most matrices are held, in one word. why: for the user.
    """

    dtype: str
    quantization: str
    kv: str
    held: str
    why: str
    rounds_floats: bool = True

    def format(self, kinds: Iterable[str], width: int) -> Format:
        """How a matrix of `width` inputs whose parts are stored as `kinds` is held."""
        kinds = set(kinds)
        full = kinds <= FULL_KINDS
        if self.quantization == "none" or (self.quantization == "auto" and full):
            return _FLOATS[self.dtype]
        four_bits = self.rounds_floats if full else kinds <= INT4_KINDS
        if self.quantization == "int4" and width % INT4_BLOCK == 0 and four_bits:
            return Format.INT4
        return Format.INT8

    def may_hold_int8(self, kinds: Iterable[str], widths: Iterable[int]) -> bool:
        """Whether some matrix of a model may be held so, whose matrices are stored as `kinds` and have such widths."""
        return any(self.format({kind}, width) is Format.INT8 for kind in kinds for width in widths)

    def with_kv(self, dtype: str) -> Precision:
        """The same weights, and K/V as `dtype` says; auto leaves them."""
        return self if dtype == "auto" else replace(self, kv=dtype)

    @property
    def text(self) -> str:
        return f"weights in {self.held}, {self.why}; keys and values in {self.kv}"


def choose_precision(dtype: str, quantization: str, kinds: Iterable[str]) -> Precision:
    """The settings with every `auto` decided for files that store their matrices as `kinds`.

    `auto` keeps what the files hold: it never makes numbers of full precision coarser. float16 is held as float32,
    since bfloat16 could not hold it exactly; files that are quantised already go to int8, which is quicker than floats
    and nearer to them than int4, whose activations are rounded as they come.
    K/V goes with the weights: int8 beside integers, else as they are.
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
    return Precision(dtype, quantization, dtype if held in _FLOATS else "int8", held, why, not quantised)
