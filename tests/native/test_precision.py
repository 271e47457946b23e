"""What `auto` decides: nothing becomes coarser than it is in the files unless somebody asks for it."""

from __future__ import annotations

import pytest

from orcaserve.native.packing import Format
from orcaserve.native.precision import choose_precision

Q4 = {"Q4_1", "Q8_0"}


@pytest.mark.parametrize(
    ("settings", "kinds", "held", "kv"),
    [
        (("auto", "auto", "auto"), {"F32"}, Format.FLOAT32, "float32"),
        (("auto", "auto", "auto"), {"F16"}, Format.FLOAT32, "float32"),
        (("auto", "auto", "auto"), {"BF16"}, Format.BFLOAT16, "bfloat16"),
        (("auto", "auto", "auto"), {"BF16", "F32"}, Format.FLOAT32, "float32"),
        (("auto", "auto", "auto"), Q4, Format.INT8, "int8"),
        (("auto", "auto", "auto"), {"Q6_K", "F16"}, Format.INT8, "int8"),
        (("auto", "none", "auto"), Q4, Format.FLOAT32, "float32"),
        (("bfloat16", "none", "auto"), Q4, Format.BFLOAT16, "bfloat16"),
        (("bfloat16", "auto", "auto"), {"F32"}, Format.BFLOAT16, "bfloat16"),
        (("auto", "int8", "auto"), {"F32"}, Format.INT8, "int8"),
        (("auto", "int8", "float32"), {"F32"}, Format.INT8, "float32"),
        (("auto", "int4", "auto"), {"F32"}, Format.INT4, "int8"),
        (("auto", "int4", "bfloat16"), {"Q4_0"}, Format.INT4, "bfloat16"),
        (("auto", "none", "int8"), {"F32"}, Format.FLOAT32, "int8"),
    ],
)
def test_the_whole_model(settings: tuple[str, str, str], kinds: set[str], held: Format, kv: str) -> None:
    precision = choose_precision(*settings[:2], kinds).with_kv(settings[2])
    quantised = sorted(kinds - {"F32", "F16", "BF16"}) or sorted(kinds)
    assert precision.format({quantised[0]}, 64) is held
    assert precision.kv == kv


def test_matrices_of_one_file() -> None:
    auto, int4 = choose_precision("auto", "auto", Q4), choose_precision("auto", "int4", Q4)
    assert auto.format({"F16"}, 64) is Format.FLOAT32, "full precision stays so, in a file of others too"
    assert auto.format({"Q4_0", "F16"}, 64) is Format.INT8
    assert int4.format({"Q4_1"}, 64) is Format.INT4
    assert int4.format({"Q4_1", "Q4_0"}, 64) is Format.INT4
    assert int4.format({"Q8_0"}, 64) is Format.INT8, "four bits would lose what eight hold"
    assert int4.format({"Q4_1", "Q8_0"}, 64) is Format.INT8
    assert int4.format({"F16"}, 64) is Format.INT8, "who quantised the file left it, and four bits harm it most"
    floats = choose_precision("auto", "int4", {"F32"})
    assert floats.format({"F32"}, 64) is Format.INT4
    assert floats.format({"F32"}, 48) is Format.INT8, "no whole number of blocks"


def test_the_user_is_told_what_and_why() -> None:
    assert choose_precision("auto", "auto", Q4).text == (
        "weights in int8, the file is quantised (Q4_1, Q8_0); keys and values in int8"
    )
    assert "the file has full precision (F32)" in choose_precision("auto", "auto", {"F32"}).text
    assert choose_precision("auto", "int4", Q4).with_kv("float32").text == (
        "weights in int4, as asked for; keys and values in float32"
    )
