"""How far is the simulator from the engine, on the machine it was fitted to?

    chrt -f 5 python benchmarks/simulator_accuracy.py [--http] [--out FILE.md] [--json FILE.json]

The engine that serves (scheduler, loop and worker in this process, no HTTP) is profiled, then plays the paper's trace
and Azure's conversations (lengths cut to fit) in real time: once faster than it can, which gives the throughput at
saturation, then at 50 and 80 % of that. The simulator runs the same arrivals through the same scheduler on the fitted
cost, which has seen nothing but the profile. Machines drift, so every run stands between two short probes; with the
profile's cost made as much larger as iterations in them took, the errors that remain are the simulator's own. With
--http the same arrivals also go over HTTP, by `orcaserve bench serve`, to show what the endpoint adds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from report import Line, add_line_argument, heading, mark, table, write, write_lines
from server import serving

from orcaserve.cli.options import add_model_arguments, engine_config
from orcaserve.config import EngineConfig
from orcaserve.core import EngineFacts
from orcaserve.evaluation.measured_engine import MeasuredEngine
from orcaserve.evaluation.play import Played, play
from orcaserve.evaluation.profiling import Cell, measure, plan, samples_of
from orcaserve.scheduler.policies import EvenBatches
from orcaserve.scheduler.scheduler import Scheduler
from orcaserve.simulation.driver import simulate
from orcaserve.simulation.outcome import Summary
from orcaserve.simulation.pipeline import Pipeline
from orcaserve.simulation.profile import ProfiledCost, Sample, fit_cost, fit_errors, slowdown, with_pauses
from orcaserve.workload import Arrival
from orcaserve.workload.named import Workload, named_source
from orcaserve.workload.shape import Shape

SHARES = (0.5, 0.8)  # of saturation
SATURATION = "saturation"
GOALS = {SATURATION: 0.05, 0.5: 0.05, 0.8: 0.10}
PRESSED = 2.0  # how many times faster than it can are requests sent, to find saturation


PROBES = (
    Cell(2, (64, 512), (8, 64), 1.5),
    Cell(8, (64, 512), (8, 64), 1.5),
    Cell(32, (64, 512), (8, 64), 1.5),
    Cell(8, (512, 1536), (8, 64), 1.5),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One run, measured and simulated. load: "saturation" or a share of it; rate: requests a second offered.

    Throughputs in requests a second; medians of normalised latency in milliseconds. drift: how many times as long as
    the profile says iterations took in probes right before and after the run; `simulated_then` is with a cost that is
    as much larger. own: the same of the run's own iterations, which only tells where an error comes from. late_ms: how
    late requests were handed over, on average.
    """

    workload: str
    load: str | float
    seed: int
    rate: float
    real_throughput: float
    real_ms: float
    simulated_throughput: float
    simulated_ms: float
    drift: float
    simulated_then_throughput: float
    simulated_then_ms: float
    own: float
    late_ms: float

    @property
    def error(self) -> float:
        """Of what counts at this load, as a share of what was measured."""
        if self.load == SATURATION:
            return self.simulated_throughput / self.real_throughput - 1
        return self.simulated_ms / self.real_ms - 1

    @property
    def error_then(self) -> float:
        if self.load == SATURATION:
            return self.simulated_then_throughput / self.real_throughput - 1
        return self.simulated_then_ms / self.real_ms - 1


@dataclass(frozen=True, slots=True)
class Run:
    workload: Workload
    load: str | float
    seed: int
    rate: float
    played: Played
    probes: Sequence[Sample]

    @property
    def real(self) -> Summary:
        return self.played.outcome.summary()


class Simulator:
    """The engine's scheduler over a cost."""

    def __init__(self, facts: EngineFacts, page_size: int) -> None:
        self._facts, self._page_size = facts, page_size

    def run(self, arrivals: Sequence[Arrival], cost: ProfiledCost) -> Summary:
        facts = self._facts
        scheduler = Scheduler(facts.n_slots, facts.max_bs, 1, self._page_size, EvenBatches(1))
        return simulate(arrivals, scheduler, Pipeline(cost)).summary()


def workloads(n_paper: int, n_azure: int) -> list[Workload]:
    cut = Shape(max_input=1024, max_output=256)
    return [
        Workload("paper", named_source("paper"), n_paper),
        Workload("azure-conv", named_source("azure-conv"), n_azure, cut),
    ]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run_all(engine: MeasuredEngine, simulator: Simulator, args: argparse.Namespace) -> tuple[list[Run], list[Sample]]:
    """All runs, and the samples of the profile, a half of which is made before them and a half after."""
    facts = engine.facts
    cells = plan(facts.max_bs, facts.longest_request, facts.n_slots, args.cell_seconds)
    samples, runs = measure(engine, cells), []
    for workload in workloads(args.n_paper, args.n_azure):
        guess = simulator.run(workload.arrivals(1000.0, 0), fit_cost(samples)).throughput
        probes = measure(engine, PROBES)

        def run(load: str | float, seed: int, rate: float, workload: Workload = workload) -> Run:
            nonlocal probes
            before, played = probes, play(engine, workload.arrivals(rate, seed))
            probes = measure(engine, PROBES)
            done = Run(workload, load, seed, rate, played, [*before, *probes])
            figures = f"{done.real.throughput:.3f} req/s, {done.real.normalised.p50:.1f} ms"
            say(f"{workload.name} {load} seed {seed}: {figures}")
            return done

        for seed in range(args.seeds):  # which has a saturation of its own: a trace is not the same everywhere
            runs.append(run(SATURATION, seed, PRESSED * guess))
            saturation = runs[-1].real.throughput
            runs += [run(share, seed, share * saturation) for share in SHARES]
    return runs, samples + measure(engine, cells)


def compare(run: Run, simulator: Simulator, cost: ProfiledCost) -> Row:
    arrivals = run.workload.arrivals(run.rate, run.seed)
    drift = slowdown(cost, run.probes)
    alone, then = simulator.run(arrivals, cost), simulator.run(arrivals, cost.times(drift))
    return Row(
        run.workload.name, run.load, run.seed, run.rate, run.real.throughput, run.real.normalised.p50, alone.throughput,
        alone.normalised.p50, drift, then.throughput, then.normalised.p50, slowdown(cost, samples_of(run.played)),
        fmean(run.played.lateness) * 1e3,
    )  # fmt: skip


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


def verdicts(rows: Sequence[Row]) -> list[tuple[str, str | float, list[float], list[float], float]]:
    """Of every workload and load: errors of the seeds by the profile alone and with the speed then, and the goal."""
    found = []
    for workload in dict.fromkeys(row.workload for row in rows):
        for load, goal in GOALS.items():
            mine = [row for row in rows if row.workload == workload and row.load == load]
            found.append((workload, load, [row.error for row in mine], [row.error_then for row in mine], goal))
    return found


def report(rows: Sequence[Row], fit: Mapping[str, float], http: Sequence[float]) -> str:
    text = f"Profile: {fit['n_samples']} iterations, off by {fit['median_error']:.1%} (median), {fit['p90_error']:.1%} "
    text += f"(p90); pauses make all {fit['slowdown']:.3f} times as slow together.\n\n"
    text += table(
        ["workload", "load", "mean error", "each seed", "with the speed at the time", "each seed", "goal", ""],
        [[workload, _load(load), f"{fmean(alone):+.1%}", _each(alone), f"{fmean(then):+.1%}", _each(then),
          f"{goal:.0%}", mark(abs(fmean(then)) <= goal)] for workload, load, alone, then, goal in verdicts(rows)],
    )  # fmt: skip
    text += "\nThroughputs in requests a second, medians in milliseconds a token. *Drift*: iterations in probes right "
    text += (
        "before and after the run took so many times what the profile says. *Own*: the run's own iterations did.\n\n"
    )
    text += table(
        ["workload", "load", "seed", "offered", "real", "simulated", "then", "real median", "simulated", "then",
         "drift", "own", "sent late ms"],
        [[row.workload, _load(row.load), row.seed, f"{row.rate:.2f}", f"{row.real_throughput:.2f}",
          f"{row.simulated_throughput:.2f}", f"{row.simulated_then_throughput:.2f}", f"{row.real_ms:.1f}",
          f"{row.simulated_ms:.1f}", f"{row.simulated_then_ms:.1f}", f"{row.drift:.3f}", f"{row.own:.3f}",
          f"{row.late_ms:.2f}"] for row in rows],
    )  # fmt: skip
    if http:
        pairs = zip([row for row in rows if row.seed == 0 and row.load != SATURATION], http, strict=True)
        text += "\nThe same arrivals over HTTP (first seed):\n\n"
        http_rows = [[row.workload, _load(row.load), f"{row.real_ms:.1f}", f"{ms:.1f}"] for row, ms in pairs]
        text += table(["workload", "load", "real median", "over HTTP"], http_rows)
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--n-paper", type=int, default=300, help="requests of a run of the paper's trace")
    parser.add_argument("--n-azure", type=int, default=120)
    parser.add_argument("--cell-seconds", type=float, default=2.0, help="of each point of the profile, twice")
    parser.add_argument("--http", action="store_true", help="the first seed over HTTP too")
    parser.add_argument("--out")
    parser.add_argument("--json", help="every row, the cost, and its errors")
    add_line_argument(parser)
    add_model_arguments(parser, positional=False)
    args = parser.parse_args()
    config = engine_config(args)
    with MeasuredEngine(config) as engine:
        _go_before_the_engine()
        simulator = Simulator(engine.facts, config.kv.page_size)
        runs, samples = run_all(engine, simulator, args)
    typical = fit_cost(samples)
    fit = fit_errors(typical, samples) | {"slowdown": slowdown(typical, samples)}
    cost = with_pauses(typical, samples)
    rows = [compare(run, simulator, cost) for run in runs]
    http = [over_http(run, config) for run in runs if args.http and run.seed == 0 and run.load != SATURATION]
    write(heading("The simulator against the engine", __doc__) + report(rows, fit, http), args.out)
    if args.json:
        found = {"rows": [asdict(row) for row in rows], "cost": asdict(cost), "fit": fit, "http": http}
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")
    results = [(f"{workload}, {_load(load)}", fmean(then), goal) for workload, load, _, then, goal in verdicts(rows)]
    what = f"simulator against engine, mean error of {args.seeds} seeds: "
    lines = [
        Line(what + name, f"{goal:.0%}", f"{mean:+.1%}", "", "", abs(mean) <= goal) for name, mean, goal in results
    ]
    write_lines(lines, args.lines)
    return 0 if all(abs(mean) <= goal for _, mean, goal in results) else 1


def _each(errors: Sequence[float]) -> str:
    return " ".join(f"{error:+.1%}" for error in errors)


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
