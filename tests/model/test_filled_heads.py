"""Heads whose dimensions are no multiple of 4, filled up for the CPU's kernels: the numbers are the model's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quantised_folders
import torch
from family_cases import TEXT, logits, make
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from orcaserve.checkpoint.converted import WEIGHTS
from orcaserve.core.errors import CheckpointError, UnsupportedModel
from orcaserve.model.adapter import load_adapter
from orcaserve.model.filled_heads import HEAD_UNIT
from orcaserve.model.loader import ModelFiles
from orcaserve.model.part import Part
from orcaserve.native import _kernels
from orcaserve.native.convert import convert
from orcaserve.native.exact_inputs import build_part, build_weights
from orcaserve.native.packed_model import load_packed
from orcaserve.native.packing import unpack
from orcaserve.native.precision import choose_precision
from orcaserve.native.support import lacking


def turned(share: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": share}}


# case -> what makes its heads have 6 or 10 dimensions
ODD: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 6},
    "qwen3": {"head_dim": 10},
    "gemma3": {"head_dim": 6},
    "olmo2": {"hidden_size": 60},
    "phi3": {"hidden_size": 60},
    "gpt2": {"n_embd": 60},
    "opt": {"hidden_size": 60},
    "gpt_neox": {"hidden_size": 60} | turned(0.4),
    "gptj": {"n_embd": 60, "rotary_dim": 6},
    "bloom": {"hidden_size": 60},
    "falcon, new": {"hidden_size": 60},
    "mpt": {"d_model": 60},
    "phi": {"hidden_size": 60} | turned(0.6),
}


@pytest.fixture(scope="module", params=ODD)
def odd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    folder: Path = tmp_path_factory.mktemp("odd")
    model = make(request.param, **ODD[request.param])
    model.save_pretrained(folder)
    return folder, logits(model, TEXT[:120])


def test_the_kernels_give_the_models_logits(odd: tuple[Path, torch.Tensor], native_model: Any, runner: Any) -> None:
    folder, expected = odd
    model = native_model(folder)
    assert model.spec.head_dim % HEAD_UNIT == 0 and model.spec.stored_head_dim in (6, 10)
    got = runner(model)
    for place, piece in ((0, TEXT[:1]), (1, TEXT[1:2]), (119, TEXT[2:120])):
        error = (got.step([(0, piece)])[0] - expected[place]).abs().max() / expected[place].abs().max()
        assert error < 1e-4, f"position {place}: {error:.2e}"


def test_integers_are_close(odd: tuple[Path, torch.Tensor], native_model: Any, runner: Any) -> None:
    folder, expected = odd
    got = runner(native_model(folder, quantization="int8")).step([(0, TEXT[:120])])[0]
    assert 0 < (got - expected[119]).norm() / expected[119].norm() < 0.15


def test_shards_have_the_weights_of_the_whole(tmp_path: Path) -> None:
    make("llama", head_dim=6).save_pretrained(tmp_path)
    team = _kernels.Team(2)
    with ModelFiles(tmp_path, HEAD_UNIT) as files:
        spec, precision = files.spec, choose_precision("float32", "none", files.matrix_kinds)
        layer = build_weights(files, precision, team).layers[0]
        for shard in range(2):
            part = Part(spec, range(spec.n_layers), shard, 2)
            own = build_part(files, precision, team, part).layers[0]
            assert (own.qkv.n_out, own.out.n_in) == ((6 + 2 + 2) // 2 * 8, 6 // 2 * 8)
            inputs = range(part.heads.start * 8, part.heads.stop * 8)
            assert np.array_equal(unpack(own.out), unpack(layer.out)[:, inputs.start : inputs.stop])


def test_converted_models_keep_them(tmp_path: Path) -> None:
    make("qwen3", head_dim=10).save_pretrained(tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "made", "float32", "int8", 2)
    spec, _, weights = load_packed(tmp_path / "made" / WEIGHTS, 2)
    assert (spec.head_dim, spec.stored_head_dim) == (12, 10)
    assert weights.layers[0].out.n_in == 6 * 12


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_1"])
def test_gguf_files(kind: str, tiny_llama: Any, save_gguf: Any, native_model: Any, reference: Any, runner: Any,
                    tmp_path: Path) -> None:  # fmt: skip
    """Rows of queries and keys lie in pairs there; 16 heads of 6."""
    model = tiny_llama(num_attention_heads=16, num_key_value_heads=4)
    save_gguf(model, tmp_path / "model.gguf", kind)
    expected = runner(reference(tmp_path / "model.gguf")).step([(0, TEXT[:50])])
    got = runner(native_model(tmp_path / "model.gguf")).step([(0, TEXT[:50])])
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()
    held = native_model(tmp_path / "model.gguf", quantization="auto").model.weights.layers[0]
    assert {held.qkv.format.name, held.up.format.name} == {"FLOAT32", "FLOAT32" if kind == "F32" else "INT8"}


def test_quantised_folders(tiny_llama: Any, native_model: Any, reference: Any, runner: Any, tmp_path: Path) -> None:
    tiny_llama(num_attention_heads=16, num_key_value_heads=4, num_hidden_layers=1).save_pretrained(tmp_path / "source")
    made = quantised_folders.awq(tmp_path / "source", tmp_path, 32)
    expected = runner(reference(made.folder)).step([(0, TEXT[:50])])
    got = runner(native_model(made.folder)).step([(0, TEXT[:50])])
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()


@given(st.data())
def test_rows_are_those_of_the_whole(llama: Path, data: st.DataObject) -> None:
    with ModelFiles(llama, HEAD_UNIT) as files:
        checkpoint = files._checkpoint
        name = data.draw(st.sampled_from([n for n in checkpoint.tensors if "self_attn" in n]))
        whole = checkpoint.read(name)
        assert whole.shape == checkpoint.tensors[name].shape
        start = data.draw(st.integers(0, len(whole) - 1))
        run = range(start, data.draw(st.integers(start + 1, len(whole))))
        stored = checkpoint.stored(name, [run, range(1)]).view(np.float32)
        assert np.array_equal(
            stored.reshape(-1, *whole.shape[1:]), np.concatenate([whole[start : run.stop], whole[:1]])
        )


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("llama")
    make("llama", head_dim=6).save_pretrained(folder)
    return folder


def test_what_needs_no_filling_is_left_alone(tmp_path: Path) -> None:
    make("llama").save_pretrained(tmp_path)
    with ModelFiles(tmp_path, HEAD_UNIT) as files:
        assert files.spec.stored_head_dim is None


def test_layer_norms_of_heads_are_left_to_pytorch(tmp_path: Path) -> None:
    """Their mean would be another."""
    make("phi, norms", hidden_size=60, **turned(0.4)).save_pretrained(tmp_path)
    with ModelFiles(tmp_path, HEAD_UNIT) as files:
        assert lacking(files.spec) == ["norms of heads of 10 dimensions, which are no multiple of 4"]


def test_adapters_are_refused(llama: Path) -> None:
    class Files:
        transposed, rank, modules = False, 4, ()

    refused = pytest.raises(UnsupportedModel, match=r"heads of 6 dimensions.*--device reference")
    with ModelFiles(llama, HEAD_UNIT) as files, refused:
        load_adapter(Files(), files._names, Part.whole(files.spec), 8)  # type: ignore[arg-type]


def test_tensors_of_other_sizes_are_named(llama: Path, tmp_path: Path) -> None:
    tensors = load_file(llama / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors[name] = tensors[name][:-1].copy()
    (tmp_path / "config.json").write_text((llama / "config.json").read_text())
    save_file(tensors, tmp_path / "model.safetensors")
    with ModelFiles(tmp_path, HEAD_UNIT) as files, pytest.raises(CheckpointError, match=rf"{name} has sizes \[35, "):
        build_weights(files, choose_precision("float32", "none", files.matrix_kinds), _kernels.Team(1))
