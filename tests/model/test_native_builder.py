"""What the native builder makes of tensors: exact where it can be, and in the order that the model expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orcaserve.model.loader import ModelFiles
from orcaserve.native._kernels import Team
from orcaserve.native.builder import NativeBuilder, RowFormat, row_bytes
from orcaserve.native.packing import Format, unpack
from orcaserve.native.precision import choose_precision


def load(path: Path, quantization: str, dtype: str = "auto") -> Any:
    with ModelFiles(path) as files:
        precision = choose_precision(dtype, quantization, files.matrix_kinds)
        return files.load(NativeBuilder(precision, Team(2)))


def matrices(weights: Any) -> list[Any]:
    layers = [m for layer in weights.layers for m in (layer.qkv, layer.out, layer.up, layer.down)]
    return [weights.head, *layers]


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_four_bit_blocks_stay_exact(
    kind: str, family: str, tiny_llama: Any, tiny_gpt2: Any, save_gguf: Any, tmp_path: Path
) -> None:
    """Rows of Llama's queries and keys are put in order as whole rows; the same numbers as by way of floats."""
    model = tiny_gpt2() if family == "gpt2" else tiny_llama(family, tie_word_embeddings=False)
    save_gguf(model, tmp_path / "model.gguf", kind)
    packed, floats = (load(tmp_path / "model.gguf", quantization) for quantization in ("int4", "none"))
    for ours, theirs in zip(matrices(packed), matrices(floats), strict=True):
        assert (ours.format, theirs.format) == (Format.INT4, Format.FLOAT32)
        assert np.array_equal(unpack(ours), unpack(theirs))
        assert (ours.bias is None) == (theirs.bias is None)
        assert ours.bias is None or np.array_equal(ours.bias, theirs.bias)


def test_a_file_of_several_kinds(tiny_llama: Any, save_gguf: Any, tmp_path: Path) -> None:
    save_gguf(tiny_llama(), tmp_path / "model.gguf", "Q8_0")
    for quantization in ("auto", "int4"):
        assert {matrix.format for matrix in matrices(load(tmp_path / "model.gguf", quantization))} == {Format.INT8}
    assert {matrix.format for matrix in matrices(load(tmp_path / "model.gguf", "none", "bfloat16"))} == {
        Format.BFLOAT16
    }


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_1"])
def test_tables_stay_as_they_are_stored(kind: str, tiny_llama: Any, save_gguf: Any, tmp_path: Path) -> None:
    stored = save_gguf(tiny_llama(tie_word_embeddings=True), tmp_path / "model.gguf", kind)
    weights = load(tmp_path / "model.gguf", "auto")
    format, rows = weights.embedding
    assert format.name == (kind if kind in RowFormat.__members__ else "F32")
    assert rows.shape == (131, row_bytes(format, 96))
    if format is RowFormat.F32:
        assert np.array_equal(rows.view(np.float32), stored["model.embed_tokens.weight"])


def test_halves_of_float32_are_exact_in_bfloat16_files(tiny_llama: Any, save_gguf: Any, tmp_path: Path) -> None:
    save_gguf(tiny_llama(tie_word_embeddings=True), tmp_path / "model.gguf", "BF16")
    kept, exact = load(tmp_path / "model.gguf", "auto"), load(tmp_path / "model.gguf", "none", "float32")
    for ours, theirs in zip(matrices(kept), matrices(exact), strict=True):
        assert ours.format is Format.BFLOAT16
        assert np.array_equal(unpack(ours), unpack(theirs))
