"""What a model needs at least, by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orcaserve.evaluation.sizes import (
    matrix_bytes_per_token,
    model_spec,
    operations_per_token,
    slot_bytes,
    stored_bytes,
    weight_bytes,
)

sys.path.insert(0, str(Path(__file__).parents[1]))
from family_cases import make

# tiny_model: vocabulary 256, hidden 32, 2 layers, 4 heads and 2 K/V heads of 8, MLP of 64; embedding and head apart.
TABLE = 256 * 32
LAYER = 32 * (32 + 16 + 16) + 32 * 32 + 3 * 32 * 64
NORMS = 5 * 32


@pytest.mark.parametrize(("form", "size"), [("float32", 4), ("bfloat16", 2), ("int8", 1), ("int4", 0.625)])
def test_bytes_of_the_tiny_model(tiny_model: Path, form: str, size: float) -> None:
    assert weight_bytes(tiny_model, form) == round(size * (2 * TABLE + 2 * LAYER) + 4 * NORMS)
    assert matrix_bytes_per_token(tiny_model, form) == round(size * (TABLE + 2 * LAYER) + 4 * NORMS)


def test_stored_bytes_of_a_float32_folder_are_its_float32_bytes(tiny_model: Path) -> None:
    assert stored_bytes(tiny_model) == weight_bytes(tiny_model, "float32")


def test_slots_and_operations_of_the_tiny_model(tiny_model: Path) -> None:
    spec = model_spec(tiny_model)
    assert operations_per_token(spec) == 2 * (2 * LAYER + TABLE)
    assert slot_bytes(spec, "float32") == 2 * 2 * 2 * 8 * 4
    assert slot_bytes(spec, "int8") == 2 * 2 * 2 * (8 + 4)


def test_a_mixture_reads_and_multiplies_what_a_token_chooses(tmp_path: Path) -> None:
    """Of four layers one has nine experts, of which four are chosen; all MLPs have 96 columns."""
    make("qwen3_moe, dense layers").save_pretrained(tmp_path)
    attention, mlp = 64 * (72 + 24 + 24) + 72 * 64, 3 * 64 * 96
    chosen = 4 * attention + (3 + 4) * mlp + 9 * 64
    assert operations_per_token(model_spec(tmp_path)) == 2 * (chosen + 131 * 64)
    idle = round(5 * mlp * 0.625)
    assert weight_bytes(tmp_path, "int4") - matrix_bytes_per_token(tmp_path, "int4") == idle


def test_the_default_model(default_model: Path) -> None:
    assert operations_per_token(model_spec(default_model)) == pytest.approx(268e6, rel=0.01)
    assert weight_bytes(default_model, "int8") == pytest.approx(134.6e6, rel=0.01)
    # Its head is stored in eight bits, and stays so.
    assert weight_bytes(default_model, "int4") == pytest.approx(28.3e6 + 106.2e6 * 0.625 + 0.14e6, rel=0.01)
