"""Which cluster is meant, and that one which does not answer is said soon. Ray itself is not needed for that."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from orcaserve.config import EngineConfig, ModelConfig, NodesConfig, ParallelConfig, RayConfig
from orcaserve.core import ConfigError, EngineError
from orcaserve.engine import placed_machines
from orcaserve.ray import cluster


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))


def test_where_a_cluster_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cluster._find(None) is None
    with pytest.raises(EngineError, match=r"^--ray-address: no cluster of Ray's runs on this machine"):
        cluster._find("auto")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379\n")
    assert cluster._find(None) == cluster._find("auto") == "10.0.0.1:6379"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    assert cluster._find(None) == cluster._find("auto") == "10.0.0.2:6379"
    assert cluster._find("10.0.0.3:6379") == "10.0.0.3:6379"
    assert cluster._find("local") is None
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert cluster._find(None) is None


def test_a_cluster_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"127.0.0.1:{server.getsockname()[1]}"
    started = time.monotonic()
    with pytest.raises(EngineError, match=f"^--ray-address: no cluster of Ray's answers at {where}$"):
        cluster.join(RayConfig(where, patience=0.0), 1)
    assert time.monotonic() - started < 30, "Ray itself tries for minutes"


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, odd_model: Path) -> None:
    monkeypatch.setattr(placed_machines, "find_spec", lambda name: None)
    config = EngineConfig(ModelConfig(odd_model, "m"), parallel=ParallelConfig(2), ray=RayConfig())
    with pytest.raises(ConfigError, match=r"^--distributed-executor-backend: .* pip install 'orcaserve\[ray\]'$"):
        placed_machines.PlacedMachines(config)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"address": "ray://10.0.0.1:10001"}, "--ray-address: Ray's clients"),
        ({"address": "10.0.0.1"}, "--ray-address: '10.0.0.1' is not HOST:PORT"),
        ({"patience": -1.0}, "--placement-timeout: must be from 0"),
        ({"patience": float("nan")}, "--placement-timeout: must be from 0"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=f"^{words}"):
        RayConfig(**settings)  # type: ignore[arg-type]


def test_ray_finds_the_machines_itself(odd_model: Path) -> None:
    model, parallel = ModelConfig(odd_model, "m"), ParallelConfig(2)
    nodes = NodesConfig(2, "127.0.0.1:7000")
    with pytest.raises(ConfigError, match=r"^--nnodes: leave it out with --distributed-executor-backend ray"):
        EngineConfig(model, parallel=parallel, nodes=nodes, ray=RayConfig())
    with pytest.raises(ConfigError, match=r"^--timeline: leave it out with --distributed-executor-backend ray"):
        EngineConfig(model, parallel=ParallelConfig(2, timeline=Path("run.json")), ray=RayConfig())


def test_a_successor_has_as_many_slots_and_more_patience(odd_model: Path) -> None:
    config = EngineConfig(ModelConfig(odd_model, "m"), parallel=ParallelConfig(2), ray=RayConfig("local", 1.0))
    assert EngineConfig.from_json(config.to_json()) == config
    successor = config.for_successor(320)
    assert (successor.kv.n_slots, successor.ray) == (320, RayConfig("local", 300.0))
    assert EngineConfig(ModelConfig(odd_model, "m")).for_successor(320).ray is None
