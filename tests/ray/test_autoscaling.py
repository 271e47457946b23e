"""How many replicas the tokens of a queue need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from orcaserve.ray.autoscaling import SLOTS, TOKENS, TokensPolicy, replicas_for


@pytest.mark.parametrize(
    ("tokens", "slots", "per_replica", "n"),
    [
        ([0], [1000], 0, 0),
        ([1], [1000], 0, 1),
        ([1000], [1000], 0, 1),
        ([1001], [1000], 0, 2),
        ([5000, 100], [1000, 1000], 0, 6),
        ([5000, 100], [1000, 1000], 2600, 2),
        ([], [], 0, 0),
    ],
)
def test_each_replica_has_room_for_its_share(tokens: list[float], slots: list[float], per_replica: int, n: int) -> None:
    assert replicas_for(tokens, slots, per_replica) == n


@dataclass
class Context:
    """What Ray Serve tells a policy, as far as ours looks at it."""

    aggregated_metrics: dict[str, dict[Any, float]] | None
    target_num_replicas: int = 3


def test_the_policy_reads_what_replicas_report() -> None:
    reported = {TOKENS: {"a": 700.0, "b": 500.0}, SLOTS: {"a": 1000.0, "b": 1000.0}, "running_requests": {"a": 9.0}}
    assert TokensPolicy()(Context(reported))[0] == 2
    assert TokensPolicy(tokens_per_replica=300)(Context(reported))[0] == 4


@pytest.mark.parametrize("nothing", [None, {}, {"running_requests": {"a": 1.0}}])
def test_without_reports_nothing_changes(nothing: dict[str, dict[Any, float]] | None) -> None:
    assert TokensPolicy()(Context(nothing))[0] == 3
