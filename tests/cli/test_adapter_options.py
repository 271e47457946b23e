"""The flags of adapters."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from orcaserve.cli.adapter_options import adapters_config, add_adapter_arguments
from orcaserve.config import AdaptersConfig, EngineConfig, ModelConfig
from orcaserve.core.errors import ConfigError, ModelNotFound, UnsupportedModel

sys.path.insert(0, str(Path(__file__).parents[1]))
from lora_files import write_adapter


def config_of(*flags: str) -> AdaptersConfig:
    parser = argparse.ArgumentParser()
    add_adapter_arguments(parser)
    return adapters_config(parser.parse_args(flags), "base")


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter", {"model.layers.0.self_attn.q_proj": (8, 6)}, 1)


def test_names_and_folders(adapter: Path) -> None:
    config = config_of("--lora-modules", f"sql={adapter}", f"org/poet={adapter}", "--max-loras", "3")
    assert [(each.number, each.name, each.path) for each in config.modules] == [
        (1, "sql", adapter),
        (2, "org/poet", adapter),
    ]
    assert config.modules[0].digest == config.modules[1].digest != ""
    assert (config.max_loras, config.max_rank, config.updating) == (3, 64, False)
    engine = EngineConfig(ModelConfig(Path("/m"), "m"), adapters=config)
    assert EngineConfig.from_json(engine.to_json()) == engine
    assert engine.for_successor(64).adapters.of_successor


def test_none_are_the_default() -> None:
    assert config_of() == AdaptersConfig()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--lora-modules", "sql"), "not NAME=DIR"),
        (("--lora-modules", "base={}"), "the model's own name"),
        (("--lora-modules", "a={}", "a={}"), "given twice"),
        (("--lora-modules", "a b={}"), "must be 1 to 256 letters"),
        (("--lora-modules", "a={}", "b={}", "--max-loras", "1"), "--max-loras is 1"),
        (("--max-loras", "0"), "--max-loras"),
        (("--max-lora-rank", "513"), "at most 512"),
    ],
)
def test_what_makes_no_sense_is_refused_by_the_flags_name(adapter: Path, flags: tuple[str, ...], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        config_of(*(flag.format(adapter) for flag in flags))


def test_files_are_looked_at_before_anything_is_started(adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="adapter a"):
        config_of("--lora-modules", f"a={tmp_path}")
    write_adapter(adapter, {"model.layers.0.self_attn.q_proj": (8, 6)}, 1, use_dora=True)
    with pytest.raises(UnsupportedModel, match="use_dora"):
        config_of("--lora-modules", f"a={adapter}")
