"""Who gets which layers and heads, and what cannot be cut is refused by the name of its flag."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from orcaserve.config import EngineConfig, ModelConfig, NodesConfig, ParallelConfig
from orcaserve.core import ConfigError
from orcaserve.model.loader import ModelFiles
from orcaserve.model.spec import ModelSpec
from orcaserve.worker import plan
from orcaserve.worker.plan import Plan, read_plan, split_layers


@pytest.fixture(scope="module")
def spec(odd_model: Path) -> ModelSpec:
    with ModelFiles(odd_model) as files:
        return files.spec


@given(n_layers=st.integers(1, 200), n_stages=st.integers(1, 20), vocab=st.integers(1, 20_000))
def test_layers_are_divided_by_what_they_cost(n_layers: int, n_stages: int, vocab: int, spec: ModelSpec) -> None:
    """No layer can be moved to a stage beside it such that the longer one of the two gets shorter."""
    assume(n_stages <= n_layers)
    sizes = replace(spec, n_layers=n_layers, vocab_size=vocab)
    stages = split_layers(sizes, ParallelConfig(n_stages))
    assert [layer for stage in stages for layer in stage] == list(range(n_layers))
    lengths = [len(stage) for stage in stages]
    assert min(lengths) > 0
    costs = [length * sizes.layer_weights for length in lengths]
    costs[-1] += sizes.head_weights
    for one, other in pairwise(range(n_stages)):
        longer, shorter = (one, other) if costs[one] > costs[other] else (other, one)
        assert lengths[longer] == 1 or costs[shorter] + sizes.layer_weights >= costs[longer]


def test_the_head_of_the_default_model_counts_as_eight_layers(spec: ModelSpec) -> None:
    sizes = replace(spec, n_layers=30, hidden_size=576, vocab_size=49_152, n_heads=9, n_kv_heads=3, head_dim=64,
                    intermediate_size=1536, gated=True)  # fmt: skip
    assert [len(stage) for stage in split_layers(sizes, ParallelConfig(2))] == [19, 11]
    assert [len(stage) for stage in split_layers(sizes, ParallelConfig(3))] == [13, 13, 4]
    assert [len(stage) for stage in split_layers(sizes, ParallelConfig(30))] == [1] * 30


@given(split=st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_layers_are_divided_as_asked_for(split: list[int], spec: ModelSpec) -> None:
    parallel = ParallelConfig(len(split), layer_split=tuple(split))
    stages = split_layers(replace(spec, n_layers=sum(split)), parallel)
    assert [len(stage) for stage in stages] == split
    assert [layer for stage in stages for layer in stage] == list(range(sum(split)))
    with pytest.raises(ConfigError, match="--layer-split"):
        split_layers(replace(spec, n_layers=sum(split) + 1), parallel)


@given(n_kv_heads=st.integers(1, 16), group=st.integers(1, 4), n_shards=st.integers(1, 16), mlp=st.integers(1, 4000))
def test_heads_go_with_their_keys_and_values(
    n_kv_heads: int, group: int, n_shards: int, mlp: int, spec: ModelSpec
) -> None:
    assume(n_shards <= min(n_kv_heads, -(-mlp // 64)))
    sizes = replace(spec, n_kv_heads=n_kv_heads, n_heads=n_kv_heads * group, intermediate_size=mlp)
    parts = Plan(sizes, ParallelConfig(1, n_shards)).parts
    assert [head for part in parts for head in part.heads] == list(range(n_kv_heads * group))
    assert [head for part in parts for head in part.kv_heads] == list(range(n_kv_heads))
    assert [column for part in parts for column in part.columns] == list(range(mlp))
    assert all(len(part.heads) == group * len(part.kv_heads) > 0 and len(part.columns) > 0 for part in parts)


@pytest.mark.parametrize(
    ("columns", "n_shards", "sizes"),
    [
        (1536, 2, [768, 768]),  # 4 groups of 192 each
        (1536, 3, [512, 512, 512]),  # whole groups would make 384, 576, 576
        (11008, 3, [3584, 3712, 3712]),  # groups of 128
        (200, 2, [128, 72]),
    ],
)
def test_columns_are_cut_between_groups_where_that_is_about_as_even(
    columns: int, n_shards: int, sizes: list[int], spec: ModelSpec
) -> None:
    cut = Plan(replace(spec, intermediate_size=columns), ParallelConfig(1, n_shards))
    assert [len(part.columns) for part in cut.parts] == sizes


def test_places_and_parts(spec: ModelSpec) -> None:
    cut = Plan(spec, ParallelConfig(2, 3))
    assert [place.name for place in cut.places] == ["s0r0", "s0r1", "s0r2", "s1r0", "s1r1", "s1r2"]
    assert [place.rank for place in cut.places] == list(range(6))
    assert [part.layers for part in cut.parts] == [range(3)] * 3 + [range(3, 5)] * 3


@pytest.mark.parametrize(
    ("parallel", "name"),
    [
        ({"pipeline_parallel_size": 0}, "--pipeline-parallel-size"),
        ({"tensor_parallel_size": -1}, "--tensor-parallel-size"),
        ({"pipeline_parallel_size": 2, "layer_split": (5,)}, "--layer-split"),
        ({"pipeline_parallel_size": 2, "layer_split": (5, 0)}, "--layer-split"),
        ({"worker_timeout": float("nan")}, "--worker-timeout"),
        ({"pipeline_parallel_size": 6}, "--pipeline-parallel-size"),
        ({"tensor_parallel_size": 5}, "--tensor-parallel-size"),
    ],
)
def test_impossible(parallel: dict[str, object], name: str, spec: ModelSpec) -> None:
    with pytest.raises(ConfigError) as refusal:
        Plan(spec, ParallelConfig(**parallel))  # type: ignore[arg-type]
    assert refusal.value.name == name


def test_without_torch(odd_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "find_spec", lambda name: None)
    config = EngineConfig(ModelConfig(odd_model, "odd"), parallel=ParallelConfig(2))
    assert len(read_plan(config).places) == 2
    with pytest.raises(ConfigError, match=r"--pipeline-parallel-size.*pip install"):
        read_plan(replace(config, nodes=NodesConfig(2, "127.0.0.1:7000")))
    monkeypatch.setattr(plan.memory, "AVAILABLE", False)
    with pytest.raises(ConfigError, match=r"--pipeline-parallel-size.*pip install"):
        read_plan(config)


def test_settings_survive_their_way_to_a_worker(odd_model: Path) -> None:
    parallel = ParallelConfig(2, 3, (1, 4), 12.5, Path("/x/y.json"))
    config = EngineConfig(ModelConfig(odd_model, "odd"), parallel=parallel)
    assert EngineConfig.from_json(config.to_json()) == config
