"""Figure 10 on this machine: the policies on the same engine and kernels, in real time, with a real model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import log

from orcaserve.config import EngineConfig, KVConfig, SchedulerConfig
from orcaserve.evaluation.measured_engine import MeasuredEngine
from orcaserve.evaluation.paper.figure import Figure, Table
from orcaserve.evaluation.pictures.chart import COLOURS, Axis, Chart, Level, Series, draw_chart
from orcaserve.evaluation.pictures.drawing import beside
from orcaserve.evaluation.play import play
from orcaserve.simulation.outcome import Summary
from orcaserve.workload.named import Workload, named_source
from orcaserve.workload.shape import Shape

# Each policy with every max_bs that may be its best one.
SETTINGS = (
    *[SchedulerConfig(max_bs, "iteration-level") for max_bs in (32, 64)],
    *[SchedulerConfig(max_bs, "request-level") for max_bs in (1, 8, 16)],
    SchedulerConfig(32, "cellular"),
    SchedulerConfig(32, "overcommit"),
)
LOADS = (0.4, 0.7, 0.92)  # shares of what can be carried
LONGEST, N_SLOTS = 2048, 32 * 2048
LEAST, MOST = 24, 4000  # requests of a run
PROBE = 32  # requests, or 2 max_bs, that come at once, to find what can be carried
WORKLOADS = {"paper": Shape(), "azure-conv": Shape(max_input=1024, max_output=256)}  # lengths cut to what fits
TARGET_BATCH, TARGET_INPUT, TARGET_OUTPUT = 32, 128, 32  # Figure 9's point, twice whose time is the level compared at
SEED = 0


@dataclass(frozen=True, slots=True)
class Point:
    """One run in real time. Latencies in ms, normalised; rates in requests/s."""

    workload: str
    policy: str
    max_bs: int
    offered: float
    throughput: float
    p50_ms: float
    p99_ms: float
    n_requests: int


def live_figure(config: EngineConfig, seconds: float, on_run: Callable[[str], None] = lambda text: None) -> Figure:
    """seconds: about what each run takes. on_run: called before each engine is loaded, and after each run.

    Raises what MeasuredEngine raises.
    """
    target = _target_ms(config)
    on_run(f"level of comparison: {target:.0f} ms a token")
    points = [point for setting in SETTINGS for point in _points(_with(config, setting), seconds, on_run)]
    charts = [
        draw_chart(_chart(workload, [p for p in points if p.workload == workload], target, last))
        for workload, last in zip(WORKLOADS, [*[False] * (len(WORKLOADS) - 1), True], strict=True)
    ]
    return Figure(
        "live",
        f"the policies on one engine, with {config.model.name}",
        "Figure 10 once more, in real time: the same engine, kernels and memory, and only the policy differs; the "
        "number in brackets is max_bs. They are compared at a median of "
        f"{target:.0f} ms a token, twice what a token takes with 32 requests of 128 input tokens.",
        beside(charts),
        [_comparison(points, target), _all(points)],
        [{"target_ms": target, **asdict(point)} for point in points],
    )


def at_target(points: Sequence[Point], target_ms: float) -> float:
    """Requests a second, as served, at which the curve of one setting crosses the target: between two of its points by
    a line over log latency; 0 if even its lowest point lies above, its highest throughput if none does."""
    ordered = sorted(points, key=lambda p: p.offered)
    if not ordered or ordered[0].p50_ms > target_ms:
        return 0.0
    best = 0.0
    for below, above in pairwise(ordered):
        best = max(best, below.throughput)
        if above.p50_ms > target_ms:
            share = log(target_ms / below.p50_ms) / log(above.p50_ms / below.p50_ms)
            return max(below.throughput + share * (above.throughput - below.throughput), 0.0)
    return max(best, ordered[-1].throughput)


def _with(config: EngineConfig, setting: SchedulerConfig) -> EngineConfig:
    model = replace(config.model, max_model_len=LONGEST)
    return replace(config, model=model, scheduler=setting, kv=KVConfig(n_slots=N_SLOTS, dtype=config.kv.dtype))


def _target_ms(config: EngineConfig) -> float:
    with MeasuredEngine(_with(config, SchedulerConfig(max_bs=TARGET_BATCH))) as engine:
        engine.run(engine.random_prompts(TARGET_BATCH, TARGET_INPUT), 2)
        run = min(
            (engine.run(engine.random_prompts(TARGET_BATCH, TARGET_INPUT), TARGET_OUTPUT) for _ in range(3)),
            key=lambda run: run.seconds,
        )
    return 2 * run.seconds / TARGET_OUTPUT * 1e3


def _points(config: EngineConfig, seconds: float, on_run: Callable[[str], None]) -> Iterator[Point]:
    setting = config.scheduler
    with MeasuredEngine(config) as engine:
        engine.run(engine.random_prompts(2, 64), 8)
        for name, shape in WORKLOADS.items():

            def run(n: int, rate: float | None, name: str = name, shape: Shape = shape) -> Summary:
                arrivals = Workload(name, named_source(name), n, shape, burstiness=1.0).arrivals(rate, SEED)
                return play(engine, arrivals).outcome.summary()

            most = run(max(PROBE, 2 * setting.max_bs), 1e6).throughput
            for share in LOADS:
                rate = share * most
                n = min(max(round(rate * seconds), LEAST), MOST)
                found = run(n, rate)
                on_run(f"{name}, {setting.policy}({setting.max_bs}) at {rate:.2f} req/s: {found.normalised.p50:.1f} ms")
                yield Point(name, setting.policy, setting.max_bs, rate, found.throughput, found.normalised.p50,
                            found.normalised.p99, n)  # fmt: skip


def _chart(workload: str, points: Sequence[Point], target: float, last: bool) -> Chart:
    policies = list(dict.fromkeys(p.policy for p in points))
    series = []
    for (policy, max_bs), curve in _curves(points).items():
        nth = [b for p, b in _curves(points) if p == policy].index(max_bs)
        kind = ("circle", "square", "triangle", "diamond")[nth % 4]
        dots = [(p.throughput, p.p50_ms) for p in curve]
        series.append(Series(f"{policy}({max_bs})", dots, COLOURS[policies.index(policy)], kind, dashed=nth > 0))
    return Chart(
        workload,
        Axis("requests/s", low=0),
        Axis("median normalised latency, ms/token", log=True),
        series,
        levels=[Level(target, f"{target:.0f} ms")],
        width=620 if last else 450,
        legend=last,
    )


def _curves(points: Sequence[Point]) -> dict[tuple[str, int], list[Point]]:
    curves: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        curves.setdefault((point.policy, point.max_bs), []).append(point)
    return curves


def _comparison(points: Sequence[Point], target: float) -> Table:
    """Each policy at its best max_bs, and how many times as much iteration-level carries."""
    rows = []
    for workload in WORKLOADS:
        curves = _curves([p for p in points if p.workload == workload])
        best: dict[str, tuple[float, int]] = {}
        for (policy, max_bs), curve in curves.items():
            best[policy] = max(best.get(policy, (0.0, max_bs)), (at_target(curve, target), max_bs))
        for policy, (rate, max_bs) in best.items():
            ours = best["iteration-level"][0]
            ratio = f"{ours / rate:.2f}" if rate else "-"
            rows.append([workload, policy, str(max_bs), f"{rate:.2f}" if rate else "never", ratio])
    heading = ["workload", "policy", "best max_bs", "req/s", "iteration-level: times as much"]
    return Table(f"At a median of {target:.0f} ms a token", heading, rows)


def _all(points: Sequence[Point]) -> Table:
    rows = [
        [f"{p.workload} {p.policy}({p.max_bs})", f"{p.offered:.2f}", f"{p.throughput:.2f}", f"{p.p50_ms:.1f}",
         f"{p.p99_ms:.1f}", str(p.n_requests)]
        for p in points
    ]  # fmt: skip
    return Table("All runs", ["", "offered req/s", "served", "median ms/token", "p99", "requests"], rows)
