"""How long do a million iterations take in virtual time?

    chrt -f 5 python benchmarks/simulator_speed.py [--out FILE.md] [--lines FILE]

The scheduler that serves runs the paper's trace on the model of 175B over two stages of 8 A100s, until it has
scheduled a million iterations, at three loads: what an iteration costs goes by how many requests are in it. The goal is
30 s on one core, with the paper's max_bs of 32 at the load of its comparison or below.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

from report import Line, add_line_argument, heading, mark, table, write, write_lines

from orcaserve.scheduler import IterationLevelFCFS
from orcaserve.scheduler.scheduler import Scheduler
from orcaserve.simulation.driver import simulate
from orcaserve.simulation.paper import ORCA, paper_cost, paper_slots
from orcaserve.simulation.pipeline import Pipeline
from orcaserve.workload import paper_trace

MILLION = 1_000_000
GOAL_SECONDS = 30.0
PROBE = 500  # requests, from which it is seen how many make a million iterations


@dataclass(frozen=True, slots=True)
class Row:
    rate: float
    n_requests: int
    n_iterations: int
    tokens: int
    seconds: float

    @property
    def per_million(self) -> float:
        return self.seconds * MILLION / self.n_iterations


def run(rate: float, n_requests: int) -> Row:
    cost = paper_cost("175b", ORCA)
    scheduler = Scheduler(paper_slots("175b"), 32, cost.n_workers, policy=IterationLevelFCFS())
    arrivals = paper_trace(rate, n_requests)
    started = time.perf_counter()
    outcome = simulate(arrivals, scheduler, Pipeline(cost))
    seconds = time.perf_counter() - started
    return Row(rate, n_requests, outcome.n_iterations, sum(len(life.token_times) for life in outcome.lives), seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 3.0, 6.0], help="requests a second")
    parser.add_argument(
        "--iterations", type=int, default=MILLION, help="less is quicker; seconds are scaled to a million"
    )
    parser.add_argument("--out")
    add_line_argument(parser)
    args = parser.parse_args()
    rows = []
    for rate in args.rates:
        probe = run(rate, PROBE)
        rows.append(run(rate, -(-PROBE * args.iterations // probe.n_iterations)))
    columns = ["requests/s", "requests", "iterations", "requests in one", "s", "s for a million", "goal"]
    shown = [
        [f"{r.rate:g}", f"{r.n_requests:,}", f"{r.n_iterations:,}", f"{r.tokens / r.n_iterations:.1f}",
         f"{r.seconds:.1f}", f"{r.per_million:.1f}", mark(r.per_million <= GOAL_SECONDS)]
        for r in rows
    ]  # fmt: skip
    write(heading("Speed of the simulator", __doc__) + table(columns, shown), args.out)
    worst = max(row.per_million for row in rows)
    found = ", ".join(f"{row.per_million:.0f}" for row in rows)
    what = "a million simulated iterations, " + ", ".join(f"{row.rate:g}" for row in rows) + " req/s"
    write_lines([Line(what, f"<= {GOAL_SECONDS:g} s", f"{found} s", "", "", worst <= GOAL_SECONDS)], args.lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
