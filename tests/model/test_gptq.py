"""GPTQ folders give the weights that their definition says, in floats and as 4-bit blocks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from orcaserve.checkpoint.checkpoint import open_checkpoint
from orcaserve.core.errors import CheckpointError, ModelError, UnsupportedModel
from orcaserve.native.packing import unpack

Linears = dict[str, tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float16], NDArray[np.int64]]]
Q = "model.layers.0.self_attn.q_proj"


def pack(numbers: NDArray[np.int64]) -> Tensor:
    """Eight 4-bit numbers along the last dimension into one int32, the first in the lowest bits."""
    groups = numbers.reshape(*numbers.shape[:-1], -1, 8)
    packed = sum(groups[..., i] << (4 * i) for i in range(8))
    return torch.from_numpy(np.asarray(packed).astype(np.uint32).view(np.int32).copy())


def weights(linear: tuple[Any, ...]) -> NDArray[np.float32]:
    """[n_out, n_in] by the definition."""
    nibbles, zeros, scales, groups = linear
    inputs: NDArray[np.float32] = ((nibbles - zeros[groups]) * scales.astype(np.float32)[groups]).astype(np.float32)
    return np.ascontiguousarray(inputs.T)


class Gptq:
    """A tiny Llama in both forms: `folder`, quantised, and `plain`, with the weights the former stands for."""

    def __init__(self, source: Path, root: Path, group_size: int, symmetric: bool, form: str = "gptq") -> None:
        rng = np.random.default_rng(0)
        self.folder, self.plain = root / "gptq", root / "plain"
        config = json.loads((source / "config.json").read_text())
        tensors = load_file(source / "model.safetensors")
        plain = dict(tensors)
        self.linears: Linears = {}
        for name in [name for name in tensors if name.endswith("_proj.weight")]:
            n_out, n_in = tensors.pop(name).shape
            size = n_in if group_size == -1 else group_size
            n_groups = -(-n_in // size)
            nibbles = rng.integers(0, 16, (n_in, n_out))
            zeros = np.full((n_groups, n_out), 8) if symmetric else rng.integers(1, 17, (n_groups, n_out))
            if form == "gptq_v2" and not symmetric:
                zeros -= 1
            scales = (rng.random((n_groups, n_out)) * 0.02 + 0.001).astype(np.float16)
            linear = name.removesuffix(".weight")
            self.linears[linear] = (nibbles, zeros, scales, np.arange(n_in) // size)
            tensors[f"{linear}.qweight"] = pack(nibbles.T.copy()).T.contiguous()
            tensors[f"{linear}.qzeros"] = pack(zeros - (form == "gptq"))
            tensors[f"{linear}.scales"] = torch.from_numpy(scales)
            tensors[f"{linear}.g_idx"] = torch.from_numpy((np.arange(n_in) // size).astype(np.int32))
            tensors[f"{linear}.bias"] = torch.zeros(n_out, dtype=torch.float16)
            plain[name] = torch.from_numpy(weights(self.linears[linear]))
        self.plain.mkdir(parents=True)
        (self.plain / "config.json").write_text(json.dumps(config))
        save_file(plain, self.plain / "model.safetensors")
        settings = {"quant_method": "gptq", "bits": 4, "group_size": group_size, "sym": symmetric, "desc_act": False}
        if form != "gptq":
            settings["checkpoint_format"] = form
        self.save({**config, "quantization_config": settings}, tensors)

    def save(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "config.json").write_text(json.dumps(config))
        save_file(tensors, self.folder / "model.safetensors")

    def change(self, f: Callable[[dict[str, Any], dict[str, Tensor]], object]) -> None:
        config, tensors = (
            json.loads((self.folder / "config.json").read_text()),
            load_file(self.folder / "model.safetensors"),
        )
        f(config, tensors)
        self.save(config, tensors)


@pytest.fixture(scope="module")
def source(tiny_llama: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("source")
    tiny_llama(num_hidden_layers=1).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("group_size", "symmetric", "form"),
    [(32, True, "gptq"), (-1, True, "gptq"), (96, True, "gptq_v2"), (32, False, "gptq"), (64, False, "gptq_v2")],
)
def test_weights_are_those_of_the_definition(
    group_size: int, symmetric: bool, form: str, source: Path, tmp_path: Path
) -> None:
    made = Gptq(source, tmp_path, group_size, symmetric, form)
    checkpoint = open_checkpoint(made.folder)
    for linear, parts in made.linears.items():
        expected = weights(parts)
        assert np.array_equal(checkpoint.read(f"{linear}.weight"), expected), linear
    checkpoint.close()


PROMPT = [(0, list(range(1, 30)))]


def test_models_equal_those_with_the_plain_weights(source: Path, tmp_path: Path, run: Any) -> None:
    made = Gptq(source, tmp_path, 32, True)
    assert torch.equal(run(made.folder).step(PROMPT), run(made.plain).step(PROMPT))


@pytest.mark.parametrize("quantization", ["int4", "int8", "auto"])
def test_packed_models(quantization: str, source: Path, tmp_path: Path, native_model: Any, runner: Any) -> None:
    made = Gptq(source, tmp_path, 32, True)
    expected = runner(native_model(made.plain)).step(PROMPT)
    packed = native_model(made.folder, quantization=quantization, kv="float32")
    formats = {layer.qkv.format.name for layer in packed.model.weights.layers}
    assert formats == {"INT4" if quantization == "int4" else "INT8"}
    assert packed.model.weights.head.format.name == ("FLOAT32" if quantization == "auto" else "INT8")
    if quantization == "int4":  # bit for bit
        out = "model.layers.0.self_attn.o_proj"
        assert np.array_equal(unpack(packed.model.weights.layers[0].out), weights(made.linears[out]))
    else:
        assert (runner(packed).step(PROMPT) - expected).abs().max() < 0.1 * expected.std()


def test_order_of_groups_by_blocks(source: Path, tmp_path: Path) -> None:
    """g_idx may put blocks in any order of groups; inputs that are neighbours stay together."""
    made = Gptq(source, tmp_path, 32, True)
    nibbles, zeros, scales, groups = made.linears[Q]
    turned = groups.max() - groups
    made.change(lambda c, t: t.update({f"{Q}.g_idx": torch.from_numpy(turned.astype(np.int32))}))
    checkpoint = open_checkpoint(made.folder)
    assert np.array_equal(checkpoint.read(f"{Q}.weight"), weights((nibbles, zeros, scales, turned)))
    made.change(lambda c, t: t.pop(f"{Q}.g_idx"))
    assert np.array_equal(open_checkpoint(made.folder).read(f"{Q}.weight"), weights(made.linears[Q]))


@pytest.mark.parametrize(
    ("change", "words", "error"),
    [
        (lambda c, t: c["quantization_config"].update(bits=3), ("3 bits", "4"), UnsupportedModel),
        (lambda c, t: c["quantization_config"].update(bits=None), ("None", "4"), UnsupportedModel),
        (lambda c, t: c["quantization_config"].update(group_size=40), ("group_size 40", "32"), UnsupportedModel),
        (lambda c, t: c["quantization_config"].update(group_size="x"), ("group_size",), CheckpointError),
        (lambda c, t: c["quantization_config"].update(group_size=64), ("qzeros", "sizes"), CheckpointError),
        (lambda c, t: c["quantization_config"].update(checkpoint_format="marlin"), ("marlin",), UnsupportedModel),
        (lambda c, t: t.pop(f"{Q}.scales"), (f"{Q}.scales", "missing"), CheckpointError),
        (lambda c, t: t.update({f"{Q}.scales": t[f"{Q}.scales"].float()}), ("F32", "F16"), UnsupportedModel),
        (
            lambda c, t: t.update({f"{Q}.g_idx": t[f"{Q}.g_idx"].reshape(2, -1).T.flatten()}),
            ("act-order",),
            UnsupportedModel,
        ),
        (lambda c, t: t.update({f"{Q}.g_idx": t[f"{Q}.g_idx"] + 9}), ("groups outside",), CheckpointError),
        (lambda c, t: t[f"{Q}.scales"].fill_(float("inf")), (Q, "finite"), CheckpointError),
        (lambda c, t: t[f"{Q}.bias"].fill_(1), ("q_proj.bias",), CheckpointError),
        (lambda c, t: t.update({f"{Q}.weight": torch.ones(96, 96)}), ("same parameter",), CheckpointError),
        (lambda c, t: t.update({f"{Q}.qweight": t[f"{Q}.qweight"][:-1].clone()}), ("blocks",), UnsupportedModel),
    ],
)
def test_what_is_wrong_is_named(
    change: Any, words: tuple[str, ...], error: type[ModelError], source: Path, tmp_path: Path, run: Any
) -> None:
    made = Gptq(source, tmp_path, 32, True)
    made.change(change)
    with pytest.raises(error) as caught:
        run(made.folder)
    for word in words:
        assert word in str(caught.value)
