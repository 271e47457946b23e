"""Settings of policies and schedule logs that contradict each other are refused, and survive the way to a child."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import pytest

from orcaserve.cli.options import (
    add_model_arguments,
    add_prefix_arguments,
    add_schedule_log_arguments,
    engine_config,
    scheduler_config,
    seconds_of,
)
from orcaserve.config import EngineConfig, ModelConfig, ParallelConfig, ScheduleLogConfig, SchedulerConfig
from orcaserve.core import ConfigError

MODEL = ModelConfig(Path("m"), "m")


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"policy": "fair"}, "--scheduling-policy: must be one of iteration-level, request-level, cellular"),
        ({"microbatch_size": 2}, "--microbatch-size: means something for request-level only, not for iteration-level"),
        ({"policy": "overcommit", "first_iteration": "whole"}, "--first-iteration: means something for request-level"),
        ({"policy": "request-level", "first_iteration": "half"}, "--first-iteration: must be one of shortest, whole"),
        ({"policy": "request-level", "microbatch_size": 0}, "--microbatch-size: must be an integer of 1 or more"),
        ({"max_num_batched_tokens": 63}, "--max-num-batched-tokens: must be at least --max-num-seqs, 64"),
        ({"max_num_batched_tokens": 0}, "--max-num-batched-tokens: must be an integer of 1 or more"),
        ({"target_itl": 0.0005}, "--target-itl: must be from 1ms to 60s"),
        ({"target_itl": float("nan")}, "--target-itl: must be from 1ms to 60s"),
        ({"fairness": "equal"}, "--fairness: must be one of none, tokens"),
        ({"policy": "overcommit", "fairness": "tokens"}, "--fairness: means something for iteration-level only"),
        ({"policy": "cellular", "target_itl": 0.05}, "--target-itl: means something for iteration-level only"),
        ({"policy": "request-level", "max_num_batched_tokens": 512}, "--max-num-batched-tokens: means something for"),
        ({"policy": "request-level", "max_bs": 4, "microbatch_size": 5}, "must be at most --max-num-seqs, 4"),
        (
            {"policy": "orca-max", "prefix_caching": True},
            "--enable-prefix-caching: orca-max is .* only iteration-level",
        ),
        (
            {"policy": "overcommit", "prefix_caching": True},
            "--enable-prefix-caching: overcommit is a system to compare",
        ),
    ],
)
def test_schedulers(settings: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        SchedulerConfig(**settings)  # type: ignore[arg-type]


def test_stages_need_microbatches() -> None:
    whole = SchedulerConfig(policy="request-level")
    EngineConfig(MODEL, scheduler=whole, parallel=ParallelConfig(1, 2))
    with pytest.raises(ConfigError, match="--microbatch-size: request-level needs it with 2 stages"):
        EngineConfig(MODEL, scheduler=whole, parallel=ParallelConfig(2))
    EngineConfig(MODEL, scheduler=dataclasses.replace(whole, microbatch_size=8), parallel=ParallelConfig(2))


@pytest.mark.parametrize(
    ("settings", "what"),
    [({"part_bytes": 1000}, "--schedule-log-size: .* 65536 or more"), ({"n_files": 0}, "--schedule-log-files")],
)
def test_logs(settings: dict[str, int], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        ScheduleLogConfig(Path("x"), **settings)


def test_they_survive_the_way_to_a_child() -> None:
    config = EngineConfig(
        MODEL,
        scheduler=SchedulerConfig(8, "request-level", 2, "whole"),
        schedule_log=ScheduleLogConfig(Path("/x/run.log"), 2**20, 2),
    )
    assert EngineConfig.from_json(config.to_json()) == config
    assert EngineConfig.from_json(EngineConfig(MODEL).to_json()) == EngineConfig(MODEL)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", True),
        ("--no-enable-prefix-caching", False),
        ("--enable-prefix-caching", True),
        ("--scheduling-policy cellular", False),
    ],
)
def test_prefixes_are_shared_where_that_is_served_and_can_be(tiny_model: Path, flags: str, expected: bool) -> None:
    parser = argparse.ArgumentParser()
    add_model_arguments(parser, positional=True)
    add_prefix_arguments(parser)
    config = engine_config(parser.parse_args([str(tiny_model), *flags.split()]))
    assert config.scheduler.prefix_caching == expected
    assert EngineConfig.from_json(config.to_json()) == config


def test_what_measures_the_papers_system_shares_nothing(tiny_model: Path) -> None:
    parser = argparse.ArgumentParser()
    add_model_arguments(parser, positional=True)
    assert not engine_config(parser.parse_args([str(tiny_model)])).scheduler.prefix_caching


def test_flags() -> None:
    parser = argparse.ArgumentParser()
    add_model_arguments(parser, positional=True)
    add_schedule_log_arguments(parser)
    flags = "--scheduling-policy request-level --microbatch-size 2 --schedule-log x --schedule-log-size 1MiB"
    args = parser.parse_args(flags.split())
    assert (args.scheduling_policy, args.microbatch_size, args.first_iteration) == ("request-level", 2, None)
    assert (args.schedule_log, args.schedule_log_size, args.schedule_log_files) == (Path("x"), 2**20, 4)


@pytest.mark.parametrize(
    ("flags", "for_many", "expected"),
    [
        ("", False, ("none", None, None)),
        ("", True, ("tokens", 2048, None)),
        ("--max-num-seqs 3000", True, ("tokens", 3000, None)),
        ("--max-num-batched-tokens 0 --fairness none", True, ("none", None, None)),
        ("--max-num-batched-tokens 512 --target-itl 50ms", True, ("tokens", 512, 0.05)),
        ("--target-itl 0.2s --fairness tokens", False, ("tokens", None, 0.2)),
        ("--scheduling-policy overcommit", True, ("none", None, None)),
    ],
)
def test_what_is_on_by_default(flags: str, for_many: bool, expected: tuple[object, ...]) -> None:
    """Whoever serves many is bounded and fair, unless it is told otherwise; no flag of another policy is in the way."""
    parser = argparse.ArgumentParser()
    add_model_arguments(parser, positional=True)
    parser.set_defaults(for_many=for_many)
    config = scheduler_config(parser.parse_args(flags.split()))
    assert (config.fairness, config.max_num_batched_tokens, config.target_itl) == expected


@pytest.mark.parametrize("text", ["fast", "0ms", "-1s", "nan", "inf", "5m", ""])
def test_times(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="such as 50ms"):
        seconds_of(text)
