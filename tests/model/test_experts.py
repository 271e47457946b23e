"""Mixtures of experts in the kernels: in every format, cut and whole, and as GGUF has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_cases import TEXT, logits, make
from gguf_files import save_any_gguf
from native_parts import BATCHES, Partitioned, whole

from orcaserve.core.errors import CheckpointError, ConfigError
from orcaserve.model.loader import ModelFiles
from orcaserve.model.part import Part
from orcaserve.model.reference.builder import load_reference
from orcaserve.model.weights import Expert
from orcaserve.native.packing import Format, PackedMatrix, unpack
from orcaserve.native.support import MOST_EXPERTS, check_supported

MIXTURES = ("mixtral", "qwen3_moe", "qwen3_moe, dense layers")


@pytest.fixture(scope="module", params=MIXTURES)
def mixture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixture")
    make(request.param).save_pretrained(folder)
    return folder


def dequantised(path: Path, native: Any) -> Any:
    """The PyTorch model with the weights that the kernels' matrices stand for."""
    model = load_reference(path)

    def put(linear: Any, matrix: PackedMatrix | None) -> Any:
        if matrix is None:
            return linear
        return type(linear)(torch.from_numpy(unpack(matrix).copy()), linear.bias)

    own = native.model.weights.layers
    model.weights = replace(model.weights, head=put(model.weights.head, native.model.weights.head), layers=[
        replace(layer, qkv=put(layer.qkv, packed.qkv), out=put(layer.out, packed.out), up=put(layer.up, packed.up),
                down=put(layer.down, packed.down), router=put(layer.router, packed.router),
                experts=[Expert(put(expert.up, each.up), put(expert.down, each.down))
                         for expert, each in zip(layer.experts, packed.experts, strict=True)])
        for layer, packed in zip(model.weights.layers, own, strict=True)
    ])  # fmt: skip
    return model


@pytest.mark.parametrize(("quantization", "near"), [("int8", 0.05), ("int4", 0.1)])
def test_integers_are_near_what_their_weights_stand_for(
    quantization: str, near: float, mixture: Path, native_model: Any, reference: Any, runner: Any
) -> None:
    """What is left is the rounding of activations, which now and then takes a row to another expert."""
    native = native_model(mixture, quantization=quantization, kv="float32")
    experts = [matrix for layer in native.model.weights.layers for e in layer.experts for matrix in (e.up, e.down)]
    formats = {matrix.format for matrix in experts}
    assert Format[quantization.upper()] in formats and formats <= {Format.INT8, Format.INT4}  # 80 inputs are no blocks
    assert {layer.router.format for layer in native.model.weights.layers if layer.router} == {Format.FLOAT32}
    exact = reference(mixture)
    exact.model = dequantised(mixture, native)
    ours, theirs = runner(native).logits(TEXT[:60]), runner(exact).logits(TEXT[:60])
    errors = ((ours - theirs).square().mean(1) / theirs.square().mean(1)).sqrt()
    assert errors.median() < near, errors
    assert errors.quantile(0.75) < 3 * near, errors


def test_stages_and_shards_of_a_mixture(mixture: Path) -> None:
    expected, stages, shards = whole(mixture), Partitioned(mixture, (1, 3), 1), Partitioned(mixture, (2,), 2)
    for batch, rows in zip(BATCHES, expected, strict=True):
        assert np.array_equal(stages.step(batch), rows)
        assert np.allclose(shards.step(batch), rows, rtol=1e-4, atol=1e-4 * np.abs(rows).max())


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_over_shards_a_request_has_the_same_bits_in_any_company(quantization: str, mixture: Path) -> None:
    text = TEXT[:540]
    alone = Partitioned(mixture, (2,), 2, quantization).step([(0, text)])[0]
    parts = Partitioned(mixture, (2,), 2, quantization)
    parts.step([(1, [9] * 30), (0, text[:500]), (2, [4])])
    together = parts.step([(2, [8]), (1, [7]), (0, text[500:]), (3, list(range(77)))])
    assert np.array_equal(together[2], alone)


def test_a_mixture_is_cut_by_the_columns_of_its_narrowest_mlp(tmp_path: Path) -> None:
    make("qwen3_moe, dense layers", num_key_value_heads=6, moe_intermediate_size=32).save_pretrained(tmp_path)
    with ModelFiles(tmp_path) as files:
        with pytest.raises(ConfigError, match=r"at most 1.*32 columns in its experts"):
            Part(files.spec, range(4), 0, 2)
        assert [files.spec.has_experts(i) for i in range(4)] == [False, True, False, False]


def test_too_many_experts_are_left_to_pytorch(mixture: Path) -> None:
    with ModelFiles(mixture) as files:
        spec = files.spec
    check_supported(spec)
    with pytest.raises(Exception, match="1025 experts in a layer, more than 1024"):
        check_supported(replace(spec, n_experts=MOST_EXPERTS + 1))


def test_layers_may_all_be_dense(tmp_path: Path, run: Any) -> None:
    model = make("qwen3_moe", decoder_sparse_step=9)
    model.save_pretrained(tmp_path)
    expected = logits(model, TEXT[:40])[-1]
    got = run(tmp_path).step([(0, TEXT[:40])])[0]
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.fixture
def rough() -> Any:
    return make("mixtral", num_hidden_layers=2)


KEYS = {"attention__sliding_window": 37, "expert_count": 5, "expert_used_count": 2, "rope__freq_base": 1e6}


@pytest.mark.parametrize(
    ("kind", "merged"), [("Q8_0", False), ("Q4_0", False), ("Q4_1", False), ("Q5_1", False), ("F32", True)]
)
def test_gguf_of_experts_in_blocks(kind: str, merged: bool, rough: Any, run: Any, tmp_path: Path) -> None:
    """The logits of transformers with the weights that the blocks stand for."""
    path = tmp_path / "model.gguf"
    stored = save_any_gguf(rough, path, kind, merged, **KEYS)
    state = rough.state_dict()
    with torch.no_grad():
        for name, weight in stored.items():
            base, _, part = name.removesuffix(".weight").rpartition(".")
            if part == "down_proj":
                state[f"{base}.down_proj"].copy_(torch.from_numpy(weight))
            else:
                half = state[f"{base}.gate_up_proj"].chunk(2, dim=1)[part == "up_proj"]
                half.copy_(torch.from_numpy(weight))
    expected = logits(rough, TEXT[:50])[-1]
    got = run(path).step([(0, TEXT[:50])])[0]
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_four_bits_of_experts_stay_as_the_file_has_them(
    kind: str, rough: Any, native_model: Any, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    stored = save_any_gguf(rough, path, kind, **KEYS)
    for i, layer in enumerate(native_model(path, quantization="int4").model.weights.layers):
        for e, expert in enumerate(layer.experts):
            start = f"model.layers.{i}.mlp.experts."
            assert expert.up.format is expert.down.format is Format.INT4
            gate_up = np.concatenate([stored[f"{start}{part}_proj.weight"][e] for part in ("gate", "up")])
            assert np.array_equal(unpack(expert.up), gate_up)
            assert np.array_equal(unpack(expert.down), stored[f"{start}down_proj.weight"][e])


def test_an_expert_must_not_be_in_a_file_twice(tmp_path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("blk.0.ffn_up_exps.weight", np.zeros((2, 4, 4), np.float32))
    writer.add_tensor("blk.0.ffn_up.1.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"blk\.0\.ffn_up\.1\.weight occurs twice"):
        ModelFiles(tmp_path / "model.gguf")
