"""Determinism that was asked for is had, or refused in one line that says with what it does not go."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orcaserve import LLM
from orcaserve.cli.options import add_model_arguments, engine_config
from orcaserve.config import EngineConfig, KVConfig, ModelConfig, NodesConfig, ParallelConfig, RayConfig
from orcaserve.core import ConfigError
from orcaserve.engine.host import EngineHost
from orcaserve.worker.worker import Worker


def config(path: Path, parallel: ParallelConfig | None = None, **model: Any) -> EngineConfig:
    parallel = parallel or ParallelConfig()
    return EngineConfig(
        ModelConfig(path, "tiny", **model), KVConfig(n_slots=256), parallel=parallel, deterministic=True
    )


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "reference"])
def test_pytorch_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match=f"^--deterministic: needs --device cpu, not {device}: PyTorch rounds"):
        config(Path("m"), device=device)


@pytest.mark.parametrize("more", [{"nodes": NodesConfig(2, "127.0.0.1:7000")}, {"ray": RayConfig()}])
def test_several_machines_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^--deterministic: holds on one machine: leave out --nnodes and Ray"):
        EngineConfig(ModelConfig(Path("m"), "m"), parallel=ParallelConfig(2), deterministic=True, **more)


def test_a_child_hears_of_it() -> None:
    for deterministic in (False, True):
        settings = EngineConfig(ModelConfig(Path("m"), "m"), deterministic=deterministic)
        assert EngineConfig.from_json(settings.to_json()) == settings
        assert settings.for_successor(64).deterministic is deterministic


def test_the_flag(tiny_model: Path) -> None:
    parser = argparse.ArgumentParser()
    add_model_arguments(parser, positional=True)
    assert engine_config(parser.parse_args([str(tiny_model), "--deterministic"])).deterministic
    assert not engine_config(parser.parse_args([str(tiny_model)])).deterministic


def test_without_the_kernels_it_is_refused(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the engine would go on in PyTorch, with a warning."""
    from orcaserve import native  # noqa: F401  (there is something to take away)

    monkeypatch.delattr("orcaserve.native")
    monkeypatch.setitem(sys.modules, "orcaserve.native", None)  # makes its import raise ImportError
    with pytest.raises(ConfigError, match=r"^--deterministic: needs the CPU's kernels, which are not here"):
        Worker.load(config(tiny_model))


@pytest.fixture
def stretched(tiny_model: Path, tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    """The tiny model with rope options of another kind, trained for 64 tokens."""

    def make(rope: dict[str, Any]) -> Path:
        (tmp_path / "model.safetensors").symlink_to(tiny_model / "model.safetensors")
        settings = json.loads((tiny_model / "config.json").read_text())
        settings |= {"max_position_embeddings": 64, "rope_scaling": rope}
        (tmp_path / "config.json").write_text(json.dumps(settings))
        return tmp_path

    return make


LONGROPE = {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 64,
            "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}  # fmt: skip


@pytest.mark.parametrize("cut", [ParallelConfig(), ParallelConfig(2)], ids=["whole", "cut"])
def test_positions_that_depend_on_the_length_are_refused(cut: ParallelConfig, stretched: Any) -> None:
    """Before a worker of a group is started; and taken within the length of training, where they do not."""
    path = stretched(LONGROPE | {"original_max_position_embeddings": 32})
    words = (
        r"^--deterministic: this model's positions \(longrope\) depend .* from 32 tokens on: take --max-model-len 32$"
    )
    with pytest.raises(ConfigError, match=words):
        EngineHost.load(config(path, cut), lambda report: None)
    EngineHost.load(config(path, cut, max_model_len=32), lambda report: None).close()


def test_offline(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--deterministic: needs --device cpu"):
        LLM(tiny_model, device="reference", deterministic=True)


def test_the_user_reads_one_line(tiny_model: Path) -> None:
    command = [sys.executable, "-m", "orcaserve", "serve", str(tiny_model), "--device", "reference", "--deterministic"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("orcaserve: --deterministic: needs --device cpu, not reference")
