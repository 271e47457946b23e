"""How far is the simulator from the engine, on the machine it was fitted to?

    chrt -f 5 python benchmarks/simulator_accuracy.py [--http] [--out FILE.md] [--json FILE.json]

The engine that serves (scheduler, loop and worker in this process, no HTTP) is profiled, then plays the paper's trace
and Azure's conversations (lengths cut to fit) in real time: once faster than it can, which gives the throughput at
saturation, then at 50 and 80 % of that. The simulator runs the same arrivals through the same scheduler on the fitted
cost, which has seen nothing but the profile; that is measured anew after every workload, because machines drift. With
--http the same arrivals also go over HTTP, by `orcaserve bench serve`, to show what the endpoint adds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from report import Line, add_line_argument, heading, mark, table, write, write_lines
from server import serving

from orcaserve.cli.options import add_model_arguments, engine_config
from orcaserve.config import EngineConfig
from orcaserve.evaluation.measured_engine import MeasuredEngine
from orcaserve.evaluation.play import play
from orcaserve.evaluation.profiling import measure, plan
from orcaserve.scheduler.policies import EvenBatches
from orcaserve.scheduler.scheduler import Scheduler
from orcaserve.simulation.driver import simulate
from orcaserve.simulation.outcome import Summary
from orcaserve.simulation.pipeline import Pipeline
from orcaserve.simulation.profile import ProfiledCost, Sample, fit_cost, fit_errors, slowdown
from orcaserve.workload import Arrival
from orcaserve.workload.named import Workload, named_source
from orcaserve.workload.shape import Shape

SHARES = (0.5, 0.8)  # of saturation
GOALS = {"saturation": 0.05, 0.5: 0.05, 0.8: 0.10}
PRESSED = 2.0  # how many times faster than it can are requests sent, to find saturation


@dataclass(frozen=True, slots=True)
class Row:
    """One run, measured and simulated. load: "saturation" or a share of it; rate: requests a second offered.

    Normalised latencies are medians in milliseconds; throughputs are requests a second.
    """

    workload: str
    load: str | float
    seed: int
    rate: float
    real_throughput: float
    simulated_throughput: float
    real_ms: float
    simulated_ms: float
    http_ms: float | None = None

    @property
    def error(self) -> float:
        """Of what counts at this load, as a share of what was measured."""
        if self.load == "saturation":
            return self.simulated_throughput / self.real_throughput - 1
        return self.simulated_ms / self.real_ms - 1


@dataclass(frozen=True, slots=True)
class Run:
    workload: Workload
    load: str | float
    seed: int
    rate: float
    real: Summary

    @property
    def arrivals(self) -> list[Arrival]:
        return self.workload.arrivals(self.rate, self.seed)


class Simulated:
    """The engine's scheduler over a fitted cost."""

    def __init__(self, engine: MeasuredEngine, config: EngineConfig, cost: ProfiledCost) -> None:
        self._facts, self._page_size, self._cost = engine.facts, config.kv.page_size, cost

    def run(self, arrivals: Sequence[Arrival]) -> Summary:
        facts = self._facts
        scheduler = Scheduler(facts.n_slots, facts.max_bs, 1, self._page_size, EvenBatches(1))
        return simulate(arrivals, scheduler, Pipeline(self._cost)).summary()


def workloads(n_paper: int, n_azure: int) -> list[Workload]:
    cut = Shape(max_input=1024, max_output=256)
    return [
        Workload("paper", named_source("paper"), n_paper),
        Workload("azure-conv", named_source("azure-conv"), n_azure, cut),
    ]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run_all(engine: MeasuredEngine, config: EngineConfig, args: argparse.Namespace) -> tuple[list[Run], list[Sample]]:
    facts = engine.facts
    cells = plan(facts.max_bs, facts.longest_request, facts.n_slots, args.cell_seconds)

    def profile() -> list[Sample]:
        say("profile")
        return measure(engine, cells)

    samples, runs = profile(), []
    for workload in workloads(args.n_paper, args.n_azure):
        guess = Simulated(engine, config, fit_cost(samples)).run(workload.arrivals(1000.0, 0)).throughput

        def run(load: str | float, seed: int, rate: float, workload: Workload = workload) -> Run:
            done = Run(workload, load, seed, rate, play(engine, workload.arrivals(rate, seed)).outcome.summary())
            figures = f"{done.real.throughput:.3f} req/s, {done.real.normalised.p50:.1f} ms"
            say(f"{workload.name} {load} seed {seed}: {figures}")
            return done

        pressed = [run("saturation", seed, PRESSED * guess) for seed in range(args.seeds)]
        saturation = fmean(done.real.throughput for done in pressed)
        runs += pressed
        runs += [run(share, seed, share * saturation) for seed in range(args.seeds) for share in SHARES]
        samples += profile()
    return runs, samples


def over_http(run: Run, config: EngineConfig) -> float:
    """Median normalised latency in milliseconds of the same arrivals, served."""
    workload = run.workload
    shape = workload.shape
    flags = ["--workload", workload.name, "--n", str(workload.n), "--rate", repr(run.rate), "--seed", str(run.seed)]
    flags += ["--max-input", str(shape.max_input)] if shape.max_input else []
    flags += ["--max-output", str(shape.max_output)] if shape.max_output else []
    with serving(["--model", str(config.model.path)]) as server, tempfile.NamedTemporaryFile("r") as result:
        command = [sys.executable, "-m", "orcaserve", "bench", "serve", server.base, *flags]
        subprocess.run([*command, "--json", result.name], check=True, stdout=subprocess.DEVNULL)
        found = json.load(result)
    if found["whole"] != workload.n:
        raise SystemExit(f"{workload.name} over HTTP: {found['errors']}")
    if found["generator"]["warning"]:
        say(found["generator"]["warning"])
    return float(found["normalized_ms"]["p50"])


def verdicts(rows: Sequence[Row]) -> list[tuple[str, str | float, float, float, float]]:
    """Of every workload and load: mean error over the seeds, the largest of one seed, and the goal."""
    found = []
    for workload in dict.fromkeys(row.workload for row in rows):
        for load, goal in GOALS.items():
            errors = [row.error for row in rows if row.workload == workload and row.load == load]
            found.append((workload, load, fmean(errors), max(errors, key=abs), goal))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--n-paper", type=int, default=400, help="requests of a run of the paper's trace")
    parser.add_argument("--n-azure", type=int, default=160)
    parser.add_argument("--cell-seconds", type=float, default=1.0, help="of each point of each of the three profiles")
    parser.add_argument("--http", action="store_true", help="first seed over HTTP too")
    parser.add_argument("--out")
    parser.add_argument("--json", help="rows, cost and its errors")
    add_line_argument(parser)
    add_model_arguments(parser, positional=False)
    args = parser.parse_args()
    config = engine_config(args)
    with MeasuredEngine(config) as engine:
        _go_before_the_engine()
        runs, samples = run_all(engine, config, args)
        cost = fit_cost(samples)
        factor = slowdown(cost, samples)
        cost = cost.times(factor)
        simulated = Simulated(engine, config, cost)
        rows = []
        for run in runs:
            summary = simulated.run(run.arrivals)
            rows.append(Row(run.workload.name, run.load, run.seed, run.rate, run.real.throughput, summary.throughput,
                            run.real.normalised.p50, summary.normalised.p50))  # fmt: skip
    http = [over_http(run, config) for run in runs if args.http and run.seed == 0 and run.load != "saturation"]
    fit = fit_errors(cost, samples)
    columns = [
        "workload",
        "load",
        "seed",
        "offered req/s",
        "real req/s",
        "simulated",
        "real median ms/token",
        "simulated",
        "error",
    ]
    text = heading("The simulator against the engine", __doc__)
    text += f"The cost is fitted to {fit['n_samples']} iterations of three profiles: off by "
    text += f"{fit['median_error']:.1%} (median), {fit['p90_error']:.1%} (p90); made {factor:.3f} times as large for "
    text += "the pauses in them.\n\n"
    results = verdicts(rows)
    text += table(
        ["workload", "load", "mean error", "largest of a seed", "goal", ""],
        [[workload, _load(load), f"{mean:+.1%}", f"{largest:+.1%}", f"{goal:.0%}", mark(abs(mean) <= goal)]
         for workload, load, mean, largest, goal in results],
    ) + "\n"  # fmt: skip
    text += table(
        columns,
        [[row.workload, _load(row.load), row.seed, f"{row.rate:.2f}", f"{row.real_throughput:.2f}",
          f"{row.simulated_throughput:.2f}", f"{row.real_ms:.1f}", f"{row.simulated_ms:.1f}", f"{row.error:+.1%}"]
         for row in rows],
    )  # fmt: skip
    write(text, args.out)
    if args.json:
        found = {"rows": [asdict(row) for row in rows], "cost": asdict(cost), "fit": fit, "http": http}
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")
    write_lines(
        [Line(f"simulator against engine: {workload}, {_load(load)}, mean error of {args.seeds} seeds", f"{goal:.0%}",
              f"{mean:+.1%}", "", "", abs(mean) <= goal) for workload, load, mean, _, goal in results],
        args.lines,
    )  # fmt: skip
    passed = all(abs(mean) <= goal for _, _, mean, _, goal in results)
    return 0 if passed else 1


def _go_before_the_engine() -> None:
    """At a real-time priority, a client whose time has come would wait for the engine's threads; with this one it does
    not, as it would not at an ordinary priority."""
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0).sched_priority
    if policy == os.SCHED_FIFO:
        os.sched_setscheduler(0, policy, os.sched_param(priority + 1))


def _load(load: str | float) -> str:
    return load if isinstance(load, str) else f"{load:.0%} of it"


if __name__ == "__main__":
    raise SystemExit(main())
