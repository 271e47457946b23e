"""The weights of parts: exact inputs as a whole model has them, however it is cut; and those of converted models."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch

from orcaserve.checkpoint.converted import WEIGHTS
from orcaserve.config import EngineConfig, ModelConfig, ParallelConfig
from orcaserve.core.errors import CheckpointError, ConfigError
from orcaserve.data_plane.protocol import Floats, Place
from orcaserve.model.loader import ModelFiles
from orcaserve.model.part import Part
from orcaserve.native import _kernels
from orcaserve.native.builder import NativePartWeights, NativeWeights
from orcaserve.native.convert import convert
from orcaserve.native.cutting import cut_inputs, cut_outputs
from orcaserve.native.exact_inputs import build_weights
from orcaserve.native.packed_model import PackedFile, load_packed, save_packed
from orcaserve.native.packing import PackedMatrix
from orcaserve.native.precision import choose_precision
from orcaserve.worker.part_weights import begin_loading
from orcaserve.worker.plan import Plan, read_plan
from orcaserve.worker.watching import runs_of_layers

sys.path.insert(0, str(Path(__file__).parents[1]))
from family_cases import make

CUTS = [(1, 2), (2, 1), (2, 2), (1, 3), (3, 1), (3, 3)]


class Queues:
    """What of a data plane weights are finished over, between threads."""

    def __init__(self) -> None:
        self._queues: dict[tuple[int, int], SimpleQueue[Floats]] = {}

    def of(self, rank: int) -> Any:
        return _End(self, rank)

    def between(self, source: int, target: int) -> SimpleQueue[Floats]:
        return self._queues.setdefault((source, target), SimpleQueue())


class _End:
    def __init__(self, queues: Queues, rank: int) -> None:
        self._queues, self._rank = queues, rank

    def send_to(self, rank: int, rows: Floats) -> None:
        assert rank != self._rank and rows.dtype == np.float32
        self._queues.between(self._rank, rank).put(rows.copy())

    def receive_from(self, rank: int, n_rows: int, width: int) -> Floats:
        rows = self._queues.between(rank, self._rank).get(timeout=120)
        assert rows.shape == (n_rows, width)
        return rows


def plan_of(path: Path, p: int, t: int, quantization: str = "auto", **parallel: Any) -> tuple[ModelConfig, Plan]:
    config = ModelConfig(path, "cut", quantization=quantization)  # type: ignore[arg-type]
    return config, read_plan(EngineConfig(config, parallel=ParallelConfig(p, t, **parallel)))


def load_parts(path: Path, p: int, t: int, quantization: str = "auto", **parallel: Any) -> list[NativePartWeights]:
    """The weights of all workers, each loaded on a thread of its own."""
    (model, plan), queues = plan_of(path, p, t, quantization, **parallel), Queues()

    def load(place: Place) -> NativePartWeights:
        return begin_loading(model, plan, place, _kernels.Team(1), 1).finish(queues.of(place.rank))

    with ThreadPoolExecutor(len(plan.places)) as pool:
        return list(pool.map(load, plan.places))


@cache
def whole_of(path: Path, quantization: str) -> NativeWeights:
    with ModelFiles(path) as files:
        precision = choose_precision("auto", quantization, files.matrix_kinds)
        return build_weights(files, precision, _kernels.Team(2))


def matrices_of(weights: Any) -> dict[str, PackedMatrix]:
    found = {
        f"{i}.{field}": getattr(layer, field)
        for i, layer in enumerate(weights.layers)
        for field in ("qkv", "out", "up", "down", "router")
        if getattr(layer, field) is not None
    }
    for i, layer in enumerate(weights.layers):
        for e, expert in enumerate(layer.experts):
            found |= {f"{i}.experts.{e}.up": expert.up, f"{i}.experts.{e}.down": expert.down}
    return found if weights.head is None else found | {"head": weights.head}


def shard_of(name: str, matrix: PackedMatrix, part: Part) -> PackedMatrix:
    """A shard cut out of the whole matrix by hand."""
    dim, spec = part.spec.head_dim, part.spec
    q, kv = (range(run.start * dim, run.stop * dim) for run in (part.heads, part.kv_heads))
    if part.n_shards == 1 or name == "router":
        return matrix
    if name == "out":
        return cut_inputs(matrix, q)
    columns = part.expert_columns if "experts" in name else part.columns
    if name.endswith("down"):
        return cut_inputs(matrix, columns)
    if name == "qkv":
        starts = (0, spec.q_size, spec.q_size + spec.kv_size)
        runs = [range(s + run.start, s + run.stop) for s, run in zip(starts, (q, kv, kv), strict=True)]
        return cut_outputs(matrix, runs)
    return cut_outputs(matrix, [part.vocabulary if name == "head" else columns])


def same_array(one: Any, other: Any) -> bool:
    return one is other is None or (one.dtype == other.dtype and np.array_equal(one, other))


def same_matrix(one: PackedMatrix, other: PackedMatrix) -> None:
    """What follows the last output in a panel is no weight: nothing of it reaches a result."""
    sizes = ("format", "n_out", "n_in", "n_in_padded", "group", "interleaved")
    assert [getattr(one, size) for size in sizes] == [getattr(other, size) for size in sizes]
    assert same_array(one.bias, other.bias)
    everything = [range(one.n_out // 2 if one.interleaved else one.n_out)]
    assert same_array(cut_outputs(one, everything).panels, cut_outputs(other, everything).panels)
    assert (one.exact is None) == (other.exact is None)
    if one.exact is not None and other.exact is not None:
        for field in ("inputs", "weights", "kept"):
            assert same_array(getattr(one.exact, field), getattr(other.exact, field)), field


def are_cut_from(parts: Sequence[NativePartWeights], plan: Plan, whole: NativeWeights) -> None:
    for place, weights in zip(plan.places, parts, strict=True):
        part = plan.part(place)
        wanted = matrices_of(whole)
        for name, matrix in matrices_of(weights).items():
            layer, _, field = name.partition(".")
            field = field or name
            key = name if name == "head" else f"{part.layers.start + int(layer)}.{field}"
            same_matrix(matrix, shard_of(field, wanted[key], part))


@pytest.mark.parametrize(("p", "t"), CUTS)
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_parts_are_cut_from_the_whole_with_its_exact_inputs(
    p: int, t: int, quantization: str, outlier_model: Path
) -> None:
    whole = whole_of(outlier_model, quantization)
    if quantization == "int8":
        assert all(matrix.exact is not None for matrix in matrices_of(whole).values()), "a choice to be compared"
    _, plan = plan_of(outlier_model, p, t)
    are_cut_from(load_parts(outlier_model, p, t, quantization), plan, whole)


@pytest.mark.parametrize(("p", "t"), [(1, 2), (2, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_the_default_model_cut_has_the_exact_inputs_of_the_whole(
    p: int, t: int, quantization: str, default_model: Path
) -> None:
    whole = whole_of(default_model, quantization)
    n_exact = sum(len(matrix.exact.inputs) for matrix in matrices_of(whole).values() if matrix.exact)
    assert n_exact > 1000 if quantization == "int8" else n_exact > 0
    _, plan = plan_of(default_model, p, t)
    are_cut_from(load_parts(default_model, p, t, quantization), plan, whole)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with outliers, whose middle layer has no experts. Shards cut experts within groups that share scales."""
    folder = tmp_path_factory.mktemp("mixture")
    heads = {"head_dim": 64, "num_attention_heads": 6, "num_key_value_heads": 3}
    sizes = {"hidden_size": 192, "intermediate_size": 384, "moe_intermediate_size": 192}
    model = make("qwen3_moe", num_hidden_layers=3, mlp_only_layers=[1], **heads, **sizes)
    with torch.no_grad():
        for i, (name, tensor) in enumerate(model.named_parameters()):
            chosen = np.random.default_rng(i).permutation(192)[:9]
            if "layernorm" in name:
                tensor[chosen] *= 12
            elif "gate_up_proj" in name:  # of `up`, the second half
                tensor[:, 192 + chosen] *= 12
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("p", "t"), [(1, 2), (2, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_parts_of_a_mixture_are_cut_from_the_whole(
    p: int, t: int, quantization: str, mixture: Path, tmp_path: Path
) -> None:
    """All experts of a layer have the same exact inputs of what they read, and own ones of what they make of it."""
    whole = whole_of(mixture, quantization)
    if quantization == "int8":
        experts = [expert for layer in whole.layers for expert in layer.experts]
        assert all(expert.up.exact is not None for expert in experts)
        assert any(expert.down.exact is not None for expert in experts)
        first, second = whole.layers[0].experts[:2]
        assert first.up.exact and second.up.exact and same_array(first.up.exact.inputs, second.up.exact.inputs)
    _, plan = plan_of(mixture, p, t)
    are_cut_from(load_parts(mixture, p, t, quantization), plan, whole)
    convert(mixture, tmp_path / "converted", "auto", quantization, n_threads=1)
    _, plan = plan_of(tmp_path / "converted", p, t)
    are_cut_from(load_parts(tmp_path / "converted", p, t), plan, whole)


def test_layers_are_split_as_asked_for(outlier_model: Path) -> None:
    _, plan = plan_of(outlier_model, 2, 1, layer_split=(2, 1))
    are_cut_from(load_parts(outlier_model, 2, 1, "int8", layer_split=(2, 1)), plan, whole_of(outlier_model, "int8"))


def test_runs_of_layers() -> None:
    """One for each worker that there are layers for."""
    assert runs_of_layers([range(2), range(2, 5)], 1) == [range(2), range(2, 5)]
    assert runs_of_layers([range(5), range(5, 6)], 3) == [
        range(1), range(1, 3), range(3, 5), range(5, 6), range(6, 6), range(6, 6),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def converted(outlier_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    made: dict[tuple[str, str], Path] = {}

    def make(dtype: str, quantization: str) -> Path:
        if (dtype, quantization) not in made:
            folder = tmp_path_factory.mktemp("converted") / "model"
            convert(outlier_model, folder, dtype, quantization, n_threads=1)
            made[dtype, quantization] = folder
        return made[dtype, quantization]

    return make


@pytest.mark.parametrize(("p", "t"), CUTS)
@pytest.mark.parametrize("form", [("auto", "none"), ("bfloat16", "none"), ("auto", "int8"), ("auto", "int4")])
def test_parts_of_a_converted_model(p: int, t: int, form: tuple[str, str], converted: Callable[..., Path]) -> None:
    folder = converted(*form)
    _, plan = plan_of(folder, p, t)
    parts = load_parts(folder, p, t)
    _, _, whole = load_packed(folder / WEIGHTS, 1)
    are_cut_from(parts, plan, whole)
    for place, weights in zip(plan.places, parts, strict=True):
        part = plan.part(place)
        assert (weights.embedding is not None) == part.first and (weights.norm is not None) == part.last
        if weights.embedding is not None:
            assert weights.embedding[0] == whole.embedding[0] and same_array(weights.embedding[1], whole.embedding[1])
        if weights.norm is not None:
            assert same_array(weights.norm[0], whole.norm[0])
        for own, layer in zip(weights.layers, whole.layers[part.layers.start : part.layers.stop], strict=True):
            assert same_array(own.attention_norm[0], layer.attention_norm[0])
            assert same_array(own.mlp_norm[0], layer.mlp_norm[0])


def test_a_tied_head_has_its_rows_wherever_it_is(default_model: Path, tmp_path: Path) -> None:
    whole = whole_of(default_model, "int8")
    with ModelFiles(default_model) as files:
        precision = choose_precision("auto", "int8", files.matrix_kinds)
        save_packed(tmp_path / WEIGHTS, files.spec, precision, whole)
    for p, t in ((2, 1), (2, 2), (1, 3)):
        (_, plan), parts = plan_of(tmp_path, p, t), load_parts(tmp_path, p, t)
        are_cut_from(parts, plan, whole)
        for place, weights in zip(plan.places, parts, strict=True):
            assert (weights.head_table is None) == (not place.last or p == 1)
            if weights.head_table is not None:
                rows = plan.part(place).vocabulary
                assert weights.head_table[0] == whole.embedding[0]
                assert same_array(weights.head_table[1], whole.embedding[1][rows.start : rows.stop])


def test_a_part_is_checked_and_the_rest_is_not_looked_at(converted: Callable[..., Path], tmp_path: Path) -> None:
    folder = converted("auto", "int8")
    raw = bytearray((folder / WEIGHTS).read_bytes())
    path = tmp_path / WEIGHTS
    whole = PackedFile(folder / WEIGHTS)
    spec, file = whole.spec, whole._file
    down = file.tensors["layers.1.down.panels"]
    raw[down.offset + down.n_bytes - 200] ^= 1  # the last panel's last inputs: those of the last shard
    path.write_bytes(raw)
    sound = [Part(spec, range(1)), Part(spec, range(2, 3)), Part(spec, range(3), 0, 2)]
    for part in sound:
        PackedFile(path).load_part(part, 1)
    for part in (Part(spec, range(2)), Part(spec, range(3), 1, 2), Part(spec, range(1, 2), 2, 3)):
        with pytest.raises(CheckpointError, match=r"tensor layers\.1\.down\.panels is damaged"):
            PackedFile(path).load_part(part, 2)


def test_what_cannot_be_cut_out_of_panels_is_refused_by_name(odd_model: Path, tmp_path: Path) -> None:
    """Heads of 8 dimensions, of which int8 turns 64 together."""
    convert(odd_model, tmp_path / "int8", "auto", "int8", n_threads=1)
    with pytest.raises(ConfigError, match=r"^--tensor-parallel-size: layers\.0\.out .* cut to inputs 0 to 31.* by 64"):
        plan_of(tmp_path / "int8", 1, 2)
    plan_of(tmp_path / "int8", 5, 1)
    convert(odd_model, tmp_path / "floats", "auto", "none", n_threads=1)
    plan_of(tmp_path / "floats", 1, 4)


def test_settings_must_be_those_of_the_file(converted: Callable[..., Path]) -> None:
    folder = converted("auto", "int8")
    with pytest.raises(ConfigError, match="this model was converted with int8"):
        load_parts(folder, 2, 1, "int4")
