"""AWQ and compressed-tensors folders give the weights of their definitions, in floats, shards and 4-bit blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quantised_folders
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quantised_folders import Folder, awq, compressed

from orcaserve.checkpoint.checkpoint import open_checkpoint
from orcaserve.core.errors import CheckpointError, ModelError, UnsupportedModel
from orcaserve.model.parameter import Cut, Parameter
from orcaserve.native.packing import unpack

Make = Callable[[Path, Path], Folder]
Q = "model.layers.0.self_attn.q_proj"
BF16, F32 = torch.bfloat16, torch.float32

# name -> maker, and whether 4-bit blocks with float16 scales and minima hold the weights to the bit (None: not 4 bits)
FOLDERS: dict[str, tuple[Make, bool | None]] = {
    "awq": (lambda s, r: awq(s, r, 32), False),
    "awq, one group, bfloat16": (lambda s, r: awq(s, r, -1, BF16), False),
    "awq, zeros of 8": (lambda s, r: awq(s, r, 32, symmetric=True), True),
    "w4a16": (lambda s, r: compressed(s, r, 4, 32), True),
    "w4a16, channels, float16": (lambda s, r: compressed(s, r, 4, "channel", dtype=torch.float16), True),
    "w4a16, asymmetric": (lambda s, r: compressed(s, r, 4, 32, symmetric=False), False),
    "w4a16, zero points not packed": (lambda s, r: compressed(s, r, 4, 32, False, packed_zeros=False), False),
    "w4a16, asymmetric channels, float32": (lambda s, r: compressed(s, r, 4, "channel", False, dtype=F32), False),
    "w4a16, asymmetric tensors": (lambda s, r: compressed(s, r, 4, "tensor", symmetric=False), False),
    "w8a16": (lambda s, r: compressed(s, r, 8, 32), None),
    "w8a16, asymmetric": (lambda s, r: compressed(s, r, 8, 32, symmetric=False), None),
    "w8a8": (lambda s, r: compressed(s, r, 8, "channel", packed=False), None),
    "w8a8, float32": (lambda s, r: compressed(s, r, 8, "channel", packed=False, dtype=F32), None),
    "w8a8, tensors, static inputs": (
        lambda s, r: compressed(s, r, 8, "tensor", packed=False, static_inputs=True),
        None,
    ),
    "w8a8, asymmetric": (lambda s, r: compressed(s, r, 8, "channel", False, packed=False), None),
}


@pytest.fixture(scope="module")
def source(tiny_llama: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("source")
    tiny_llama(num_hidden_layers=1).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Folder]:
    return {name: make(source, tmp_path_factory.mktemp("folder")) for name, (make, _) in FOLDERS.items()}


@pytest.mark.parametrize("name", FOLDERS)
def test_weights_are_those_of_the_definition(name: str, folders: dict[str, Folder]) -> None:
    checkpoint = open_checkpoint(folders[name].folder)
    for linear, parts in folders[name].linears.items():
        assert np.array_equal(checkpoint.read(f"{linear}.weight"), parts.weights()), linear
    kinds = {checkpoint.tensors[f"{linear}.weight"].kind for linear in folders[name].linears}
    assert kinds == {"INT8" if FOLDERS[name][1] is None else "INT4"}
    checkpoint.close()


@given(st.data())
@settings(max_examples=60)
def test_shards_have_the_rows_and_columns_of_the_whole(folders: dict[str, Folder], data: st.DataObject) -> None:
    """Any runs of outputs, and inputs in whole blocks; a cut through a block is refused."""
    folder = folders[data.draw(st.sampled_from(list(FOLDERS)))]
    checkpoint = open_checkpoint(folder.folder)
    linear = data.draw(st.sampled_from(list(folder.linears)))
    n_out, n_in = checkpoint.tensors[f"{linear}.weight"].shape
    unit = data.draw(st.sampled_from([1, 8, 16]))
    edges = sorted(data.draw(st.sets(st.integers(0, n_out // unit), min_size=2, max_size=4)))
    rows = tuple(range(a * unit, b * unit) for a, b in zip(edges[::2], edges[1::2], strict=False))
    ends = sorted(data.draw(st.sets(st.integers(0, n_in // 32), min_size=2, max_size=2)))
    inputs = range(ends[0] * 32, ends[1] * 32)
    expected = folder.linears[linear].weights()[[i for run in rows for i in run]]
    assert np.array_equal(Parameter(checkpoint, f"{linear}.weight", cut=Cut(rows)).floats(), expected)
    part = Parameter(checkpoint, f"{linear}.weight", cut=Cut(rows, inputs))
    assert np.array_equal(part.floats(), expected[:, inputs.start : inputs.stop])
    some = data.draw(st.lists(st.sampled_from(inputs), min_size=1, max_size=4))
    assert np.array_equal(part.columns(some), expected[:, some])
    with pytest.raises(UnsupportedModel, match=rf"{linear}.weight.*blocks hold 32.*tensor-parallel"):
        Parameter(checkpoint, f"{linear}.weight", cut=Cut(rows, range(40))).floats()
    checkpoint.close()


PROMPT = [(0, list(range(1, 30)))]


@pytest.mark.parametrize("name", FOLDERS)
def test_models_equal_those_with_the_plain_weights(name: str, folders: dict[str, Folder], run: Any) -> None:
    assert torch.equal(run(folders[name].folder).step(PROMPT), run(folders[name].plain).step(PROMPT))


@pytest.mark.parametrize("name", FOLDERS)
def test_packed_models(name: str, folders: dict[str, Folder], native_model: Any) -> None:
    """int4 to the bit where float16 can hold minima, else within their rounding; int8 as of the plain weights."""
    folder, exact = folders[name], FOLDERS[name][1]
    plain = native_model(folder.plain, quantization="int8").model.weights.layers[0]
    for quantization in ("auto", "int4"):
        packed = native_model(folder.folder, quantization=quantization, kv="float32")
        layer = packed.model.weights.layers[0]
        four_bits = quantization == "int4" and exact is not None
        assert {m.format.name for m in (layer.qkv, layer.up, layer.down)} == {"INT4" if four_bits else "INT8"}
        if not four_bits:
            for part in ("qkv", "out", "up", "down"):
                assert np.array_equal(getattr(layer, part).panels, getattr(plain, part).panels)
            continue
        linear = folder.linears["model.layers.0.self_attn.o_proj"]
        actual = unpack(layer.out)
        if exact:
            assert np.array_equal(actual, linear.weights())
        else:  # the scale, 15 times, and the minimum, up to 15 scales, are rounded to 11 bits
            bound = 30 * 2.0**-11 * np.abs(linear.scales.float().numpy())[:, linear.group]
            assert (np.abs(actual - linear.weights()) <= bound).all()


def test_groups_and_targets(source: Path, tmp_path: Path) -> None:
    """Names come before patterns, and patterns before classes; formats may differ from group to group."""
    made = compressed(source, tmp_path, 4, 32)
    eight = compressed(source, tmp_path / "eight", 8, "channel", packed=False)
    down = "model.layers.0.mlp.down_proj"

    def change(config: dict[str, Any], tensors: dict[str, Any]) -> None:
        other: dict[str, Any] = {}
        eight.change(lambda c, t: other.update(config=c, tensors=t))
        groups = config["config_groups"]
        wrong = {**groups["group_0"], "weights": {**groups["group_0"]["weights"], "num_bits": 8}}
        groups["group_0"]["format"] = "pack-quantized"
        groups["by_pattern"] = {**other["config"]["config_groups"]["group_0"], "format": "int-quantized",
                                "targets": [r"re:.*down_proj$"]}  # fmt: skip
        groups["by_name"] = {**groups["group_0"], "targets": [Q]}
        groups["shadowed"] = {**wrong, "targets": [r"re:.*q_proj$"], "format": "pack-quantized"}
        config["format"] = "mixed-precision"
        for name in [name for name in tensors if name.startswith(down)]:
            del tensors[name]
        tensors.update({name: tensor for name, tensor in other["tensors"].items() if name.startswith(down)})

    made.change(change)
    checkpoint = open_checkpoint(made.folder)
    assert np.array_equal(checkpoint.read(f"{down}.weight"), eight.linears[down].weights())
    assert np.array_equal(checkpoint.read(f"{Q}.weight"), made.linears[Q].weights())


def test_order_of_groups_by_blocks(source: Path, tmp_path: Path) -> None:
    made = compressed(source, tmp_path, 4, 32, symmetric=False)
    linear = made.linears[Q]
    plain = linear.weights()
    made.change(lambda c, t: t.update({f"{Q}.weight_g_idx": torch.full((96,), -1, dtype=torch.int32)}))
    assert np.array_equal(open_checkpoint(made.folder).read(f"{Q}.weight"), plain)
    linear.group = linear.group.max() - linear.group
    index = torch.from_numpy(linear.group.astype(np.int32))
    made.change(lambda c, t: t.update({f"{Q}.weight_g_idx": index}))
    assert np.array_equal(open_checkpoint(made.folder).read(f"{Q}.weight"), linear.weights())


def refused(made: Folder, change: Any, words: tuple[str, ...], error: type[ModelError], load: Any) -> None:
    made.change(change)
    with pytest.raises(error) as caught:
        load(made.folder)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words", "error"),
    [
        (lambda c, t: c.update(version="gemv"), ("'gemv'", "gemm"), UnsupportedModel),
        (lambda c, t: c.update(version=3), ("version 3", "gemm"), UnsupportedModel),
        (lambda c, t: c.update(bits=8), ("8 bits", "4"), UnsupportedModel),
        (lambda c, t: c.update(zero_point=False), ("zero_point",), UnsupportedModel),
        (lambda c, t: c.update(group_size=24), ("group_size 24", "32"), UnsupportedModel),
        (lambda c, t: c.update(group_size=0), ("group_size",), CheckpointError),
        (lambda c, t: c.update(group_size=64), ("qzeros", "sizes"), CheckpointError),
        (lambda c, t: t.pop(f"{Q}.scales"), (f"{Q}.scales", "missing"), CheckpointError),
        (lambda c, t: t.pop(f"{Q}.qweight"), ("q_proj.weight", "missing"), CheckpointError),
        (lambda c, t: t.update({f"{Q}.scales": t[f"{Q}.scales"].float()}), ("F32", "F16"), UnsupportedModel),
        (lambda c, t: t[f"{Q}.scales"].fill_(float("nan")), (Q, "finite"), CheckpointError),
        (lambda c, t: t.update({f"{Q}.weight": torch.ones(96, 96)}), ("same parameter",), CheckpointError),
        (lambda c, t: t.update({f"{Q}.qweight": t[f"{Q}.qweight"][:-8].clone()}), ("blocks",), UnsupportedModel),
        (lambda c, t: t.update({f"{Q}.qweight": t[f"{Q}.qweight"].reshape(-1)}), ("two",), CheckpointError),
    ],
)
def test_what_is_wrong_with_awq_is_named(
    change: Any, words: tuple[str, ...], error: type[ModelError], source: Path, tmp_path: Path, load: Any
) -> None:
    refused(awq(source, tmp_path, 32), change, words, error, load)


def top(**changes: Any) -> Callable[[Any, Any], None]:
    return lambda c, t: c.update(changes)


def group(**changes: Any) -> Callable[[Any, Any], None]:
    return lambda c, t: c["config_groups"]["group_0"].update(changes)


def weights(**changes: Any) -> Callable[[Any, Any], None]:
    return lambda c, t: c["config_groups"]["group_0"]["weights"].update(changes)


def tensor(part: str, change: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    return lambda c, t: t.update({f"{Q}.{part}": change(t[f"{Q}.{part}"]).contiguous()})


@pytest.mark.parametrize(
    ("change", "words", "error"),
    [
        (top(kv_cache_scheme={"num_bits": 8}), ("kv_cache_scheme",), UnsupportedModel),
        (top(sparsity_config={"format": "sparse-24-bitmask"}), ("sparsity_config",), UnsupportedModel),
        (top(transform_config={"config_groups": {"R1": {}}}), ("transform_config",), UnsupportedModel),
        (top(moe_sparsity_config={"method": "prune"}), ("moe_sparsity_config",), UnsupportedModel),
        (top(format="marlin-24"), ("'marlin-24'", "pack-quantized"), UnsupportedModel),
        (top(format=None), ("format None", "int-quantized"), UnsupportedModel),
        (group(format="float-quantized"), ("group_0", "float-quantized"), UnsupportedModel),
        (group(format="int-quantized"), ("group_0", "4 bits", "8"), UnsupportedModel),
        (group(output_activations={"num_bits": 8}), ("group_0.output_activations",), UnsupportedModel),
        (group(input_activations={"num_bits": 8, "type": "float"}), ("group_0.input_activations",), UnsupportedModel),
        (group(input_activations={"num_bits": 4, "type": "int"}), ("group_0.input_activations",), UnsupportedModel),
        (group(weights=None), ("group_0", "weights"), UnsupportedModel),
        (group(targets="Linear"), ("targets",), CheckpointError),
        (group(targets=["re:("]), ("targets", "pattern"), CheckpointError),
        (group(targets=["re:" + "a" * 1000]), ("targets", "pattern"), CheckpointError),
        (group(targets=["re:.*down_proj$"]), ("no target",), CheckpointError),
        (weights(type="float"), ("'float'", "int"), UnsupportedModel),
        (weights(num_bits=3), ("3 bits", "4 and 8"), UnsupportedModel),
        (weights(strategy="block", block_structure=[128, 128]), ("block_structure",), UnsupportedModel),
        (weights(strategy="block"), ("'block'", "channel"), UnsupportedModel),
        (weights(dynamic=True), ("dynamic",), UnsupportedModel),
        (weights(symmetric=None), ("symmetric",), CheckpointError),
        (weights(group_size=40), ("group_size 40", "32"), UnsupportedModel),
        (weights(group_size=None), ("group_size",), CheckpointError),
        (weights(group_size=64), ("weight_scale", "sizes"), CheckpointError),
        (top(ignore=["re:.*self_attn.*"]), ("self_attn", "ignore"), CheckpointError),
        (top(ignore="lm_head"), ("ignore", "list"), CheckpointError),
        (top(ignore=[3]), ("ignore",), CheckpointError),
        (top(config_groups=None), ("config_groups",), CheckpointError),
        (top(config_groups={"W4A16": ["Linear"]}), ("W4A16",), CheckpointError),
        (lambda c, t: t.pop(f"{Q}.weight_scale"), (f"{Q}.weight_scale", "missing"), CheckpointError),
        (lambda c, t: t.pop(f"{Q}.weight_shape"), (f"{Q}.weight_shape", "missing"), CheckpointError),
        (lambda c, t: t.pop(f"{Q}.weight_packed"), ("q_proj.weight", "missing"), CheckpointError),
        (weights(symmetric=False), ("weight_zero_point", "missing"), CheckpointError),
        (tensor("weight_shape", lambda x: x - 1), ("weight_shape", "[95, 95]"), CheckpointError),
        (tensor("weight_packed", lambda x: x[:, :-1]), ("weight_shape", "88"), CheckpointError),
        (tensor("weight_scale", lambda x: x[:-1]), ("weight_scale", "[95, 3]"), CheckpointError),
        (tensor("weight_scale", lambda x: x.double()), ("weight_scale", "F64"), UnsupportedModel),
        (tensor("weight_scale", lambda x: x * float("inf")), (Q, "finite"), CheckpointError),
        (lambda c, t: t.update({f"{Q}.weight_g_idx": torch.arange(96, dtype=torch.int32) % 3}), ("act-order",),
         UnsupportedModel),
        (lambda c, t: t.update({f"{Q}.weight_g_idx": torch.full((96,), 3, dtype=torch.int32)}), ("groups outside",),
         CheckpointError),
        (lambda c, t: t.update({f"{Q}.weight_zero_point": torch.ones(96, 3, dtype=torch.int8)}), ("symmetric",),
         CheckpointError),
        (lambda c, t: t.update({f"{Q}.weight": torch.ones(96, 96)}), ("same parameter",), CheckpointError),
        (lambda c, t: t.update({f"{Q}.output_scale": torch.ones(1)}), ("output_scale",), CheckpointError),
    ],
)  # fmt: skip
def test_what_is_wrong_with_compressed_tensors_is_named(
    change: Any, words: tuple[str, ...], error: type[ModelError], source: Path, tmp_path: Path, load: Any
) -> None:
    refused(compressed(source, tmp_path, 4, 32), change, words, error, load)


def test_zero_points_outside_of_four_bits(source: Path, tmp_path: Path, load: Any) -> None:
    made = compressed(source, tmp_path, 4, 32, symmetric=False, packed_zeros=False)
    refused(
        made, tensor("weight_zero_point", lambda x: x * 0 + 8), ("weight_zero_point", "-8..7"), CheckpointError, load
    )


@pytest.mark.parametrize("size", [1e-9, 1e6])
def test_scales_that_float16_cannot_hold(size: float, source: Path, tmp_path: Path, native_model: Any) -> None:
    """Refused for 4 bits, by the name of the tensor; as floats and 8 bits they load."""
    made = compressed(source, tmp_path, 4, 32, dtype=F32)
    made.change(tensor("weight_scale", lambda x: x * 0 + size))
    with pytest.raises(UnsupportedModel, match=rf"{Q}.*float16.*int8"):
        native_model(made.folder, quantization="int4")
    native_model(made.folder, quantization="int8")


def test_the_helper_packs_as_it_says() -> None:
    assert quantised_folders.pack(np.arange(9)[None], 4).tolist() == [[0x76543210, 8]]
    assert quantised_folders.pack(np.arange(8)[None], 4, quantised_folders.AWQ_ORDER).tolist() == [[0x75316420]]
