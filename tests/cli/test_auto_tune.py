"""`serve --auto-tune`: the planner's settings, or one line that says why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orcaserve.checkpoint.locate import locate_model
from orcaserve.cli import auto_tune
from orcaserve.cli.main import main
from orcaserve.config import EngineConfig, KVConfig, ModelConfig, ParallelConfig, SchedulerConfig
from orcaserve.core import ConfigError
from orcaserve.simulation.machine import this_machine
from orcaserve.simulation.profile import Profile, ProfiledCost

COST = ProfiledCost((1, 32, 512), (4e-3, 9e-3, 80e-3), 60e-6, 150e-9, 20e-9)
MODEL = {"name": "SmolLM2-135M-Instruct", "weights": "int8", "kv_cache_dtype": "int8"}


@pytest.fixture
def config() -> EngineConfig:
    return EngineConfig(ModelConfig(locate_model(None), "SmolLM2-135M-Instruct"))


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "profile.json"
    Profile(this_machine(), MODEL, {"max_bs": 8}, COST).save(path)
    monkeypatch.setattr(auto_tune, "default_profile", lambda name: path)
    monkeypatch.setattr(auto_tune, "REQUESTS", 40)
    return path


def test_the_planner_s_settings_are_taken(
    config: EngineConfig, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = auto_tune.tuned(config, ["p50_normalized<=40ms"], "homogeneous:40:10")
    assert 1 <= tuned.scheduler.max_bs <= 8
    assert tuned.kv.n_slots is not None and tuned.kv.n_slots % 16 == 0
    assert "max_bs" in capsys.readouterr().err
    assert tuned.model == config.model


@pytest.mark.parametrize(
    ("change", "targets", "named"),
    [
        ({}, ["p50_itl<=1us"], "--target"),
        ({}, ["soon"], "--target"),
        ({}, None, "--auto-tune"),
        ({"kv": KVConfig(n_slots=64)}, ["p50_itl<=1s"], "--auto-tune"),
        ({"scheduler": SchedulerConfig(policy="cellular")}, ["p50_itl<=1s"], "--auto-tune"),
        ({"parallel": ParallelConfig(data_parallel_size=2)}, ["p50_itl<=1s"], "--auto-tune"),
    ],
)
def test_what_cannot_be_tuned(
    config: EngineConfig, profile: Path, change: dict[str, object], targets: list[str] | None, named: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        auto_tune.tuned(replace(config, **change), targets, "homogeneous:40:10")  # type: ignore[arg-type]
    assert str(caught.value).startswith(named)


def test_a_profile_of_another_machine_is_refused(config: EngineConfig, profile: Path) -> None:
    Profile({**this_machine(), "cores": 999}, MODEL, {}, COST).save(profile)
    with pytest.raises(ConfigError, match=r"machine\.cores"):
        auto_tune.tuned(config, ["p50_itl<=1s"], "paper")


def test_there_is_no_profile(config: EngineConfig, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile.unlink()
    with pytest.raises(ConfigError, match="orcaserve profile"):
        auto_tune.tuned(config, ["p50_itl<=1s"], "paper")


def test_a_target_alone_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--target", "p50_itl<=1s"]) == 2
    assert "--auto-tune" in capsys.readouterr().err
