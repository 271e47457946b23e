"""Vectors: what is made of pooled hidden states for clients. float32 numbers, computed in double precision."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence
from math import hypot
from operator import mul


def read_vector(raw: bytes) -> array[float]:
    """float32, little-endian, as engines send them."""
    vector = array("f")
    vector.frombytes(raw)
    if sys.byteorder == "big":
        vector.byteswap()
    return vector


def shortened(vector: array[float], dimensions: int | None, normalize: bool) -> array[float]:
    """The first of its numbers, all unless said; scaled to length 1 if that is asked for. A vector of nothing but zeros
    stays as it is."""
    vector = vector[:dimensions]
    length = hypot(*vector) if normalize else 0.0
    return array("f", [number / length for number in vector]) if length else vector


def as_json(vector: Sequence[float]) -> str:
    """A JSON array of finite numbers; nine digits tell every float32 from all others."""
    return f"[{','.join(['%.9g' % number for number in vector])}]"  # noqa: UP031  (half the time of format())


def as_base64(vector: array[float]) -> str:
    """float32, little-endian, as OpenAI's clients ask for."""
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()


def cosine(first: Sequence[float], second: Sequence[float]) -> float:
    """From -1 to 1; 0 if one of them has no direction."""
    length = hypot(*first) * hypot(*second)
    return max(-1.0, min(sum(map(mul, first, second)) / length, 1.0)) if length else 0.0
