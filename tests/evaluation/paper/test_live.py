"""Figure 10 in real time: a few runs on the real engine, and how curves are compared."""

from __future__ import annotations

from math import sqrt

import pytest

from orcaserve.checkpoint.locate import locate_model
from orcaserve.config import EngineConfig, ModelConfig, SchedulerConfig
from orcaserve.evaluation.paper import live
from orcaserve.evaluation.paper.live import Point, at_target


def _point(offered: float, throughput: float, p50_ms: float) -> Point:
    return Point("paper", "iteration-level", 8, offered, throughput, p50_ms, p50_ms, 10)


def test_where_a_curve_crosses_the_target() -> None:
    curve = [_point(1, 1.0, 10.0), _point(2, 2.0, 20.0), _point(3, 2.5, 80.0)]
    assert at_target(curve, 20.0) == pytest.approx(2.0)
    assert at_target(curve, 40.0) == pytest.approx(2.25)
    assert at_target(curve, 10.0 * sqrt(2)) == pytest.approx(1.5)
    assert at_target(curve, 5.0) == 0.0
    assert at_target(curve, 100.0) == 2.5


def test_every_policy_runs_on_the_real_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few requests to tell anything of them, but all that the figure is made of."""
    monkeypatch.setattr(
        live, "SETTINGS", tuple(SchedulerConfig(2, policy) for policy in dict.fromkeys(s.policy for s in live.SETTINGS))
    )
    monkeypatch.setattr(live, "WORKLOADS", {"paper": live.Shape(max_input=24, max_output=6)})
    monkeypatch.setattr(live, "LEAST", 4)
    monkeypatch.setattr(live, "PROBE", 4)
    monkeypatch.setattr(live, "LOADS", (0.5, 0.9))
    monkeypatch.setattr(live, "TARGET_BATCH", 2)
    told: list[str] = []
    figure = live.live_figure(EngineConfig(ModelConfig(locate_model(None), "default")), 0.5, told.append)
    assert {point["policy"] for point in figure.points} == {s.policy for s in live.SETTINGS}
    assert len(told) == 1 + len(figure.points)
    assert "iteration-level" in figure.tables[0].text()
    assert figure.drawing.svg().count("<svg") == 1
