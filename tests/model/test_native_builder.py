"""What the native builder makes of tensors: exact where it can be, and in the order that the model expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orcaserve.checkpoint.dequantise import dequantise
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


WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_q4_k_keeps_its_numbers_and_rounds_its_scales(
    family: str, tiny_llama: Any, save_gguf: Any, tmp_path: Path
) -> None:
    """To float16: 15 scales and a minimum by at most 2^-11 of themselves. Rows are put in order as whole rows."""
    save_gguf(tiny_llama(family, tie_word_embeddings=False, **WIDE), tmp_path / "model.gguf", "Q4_K")
    packed, floats = (load(tmp_path / "model.gguf", quantization) for quantization in ("int4", "none"))
    for ours, theirs in zip(matrices(packed), matrices(floats), strict=True):
        assert ours.format == Format.INT4
        actual, expected = (unpack(m).reshape(-1, 32) for m in (ours, theirs))
        least, most = expected.min(1), expected.max(1)
        assert (np.abs(actual - expected).max(1) <= 2.0**-11 * (2 * np.abs(least) + 2 * np.abs(most) + 1e-4)).all()
    format, rows = packed.embedding
    assert format is RowFormat.Q4_1
    table = np.empty((131, 256), np.float32)
    dequantise("Q4_1", rows.reshape(-1), table.reshape(-1))
    whole = floats.embedding[1].view(np.float32)
    assert np.abs(table - whole).max() <= 2.0**-10 * np.abs(whole).max()


def test_a_file_as_mixed_as_q4_k_m(tiny_llama: Any, save_gguf: Any, tmp_path: Path) -> None:
    """What has more than four bits is held in eight; a matrix that is several tensors goes by the finest of them."""
    kinds = {"v_proj": "Q6_K", "down_proj": "Q6_K", "lm_head": "Q6_K", "embed": "Q4_K"}
    model = tiny_llama(tie_word_embeddings=False, num_hidden_layers=1, **WIDE)
    save_gguf(model, tmp_path / "model.gguf", "Q4_K", kinds=kinds)
    auto, int4 = (load(tmp_path / "model.gguf", quantization) for quantization in ("auto", "int4"))
    assert {matrix.format for matrix in matrices(auto)} == {Format.INT8}
    formats = [matrix.format for matrix in matrices(int4)]
    assert formats == [Format.INT8, Format.INT8, Format.INT4, Format.INT4, Format.INT8]  # head, qkv, out, up, down
    assert (auto.embedding[0], int4.embedding[0]) == (RowFormat.F32, RowFormat.Q4_1)


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
