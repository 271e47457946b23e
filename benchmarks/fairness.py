"""Does one client take the whole machine? Two that always have requests waiting, one with 20 times as many.

A server with fair sharing by tokens and one without, in turn. Told: tokens served to each (input once its request has
its first token, output as it comes) in every window of 10 s, half a second apart, once both are under way.

    python benchmarks/fairness.py [--seconds 40] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from bisect import bisect_left, bisect_right
from itertools import accumulate
from statistics import median

import report
from server import serving

from orcaserve.evaluation.load.prompts import TokenIds
from orcaserve.evaluation.load.server import Address, Server

GOAL = 0.05
WINDOW, STEP = 10.0, 0.5
WARM_SECONDS = 5.0


class Served:
    """What one client was served: (time, tokens) as it came."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.tokens: list[int] = []

    def add(self, now: float, n: int) -> None:
        self.times.append(now)
        self.tokens.append(n)

    def between(self, begin: float, end: float, sums: list[int]) -> int:
        return sums[bisect_right(self.times, end)] - sums[bisect_left(self.times, begin)]


async def run(base: str, args: argparse.Namespace) -> list[tuple[int, int]]:
    """Tokens of the light and of the heavy client in each window."""
    server, clock = Server(await Address.find(base), "completions", None, 600.0), time.perf_counter
    ids, model = TokenIds(100, 30_000), await server.first_model()
    rng = random.Random(args.seed)
    clients = {"light": (args.light, Served()), "heavy": (args.light * args.times, Served())}

    async def work(user: str, served: Served) -> None:
        while True:
            n_input, n_output = rng.randint(*args.input), rng.randint(*args.output)
            body = {"model": model, "temperature": 0, "ignore_eos": True, "stream": True, "user": user,
                    "max_tokens": n_output, **ids.fields(n_input, rng)}  # fmt: skip
            first = True

            def news(now: float, n_input: int = n_input) -> None:
                nonlocal first
                served.add(now, 1 + n_input * first)
                first = False

            await server.send(server.request(body), clock, news)

    tasks = [asyncio.create_task(work(user, served)) for user, (n, served) in clients.items() for _ in range(n)]
    done, _ = await asyncio.wait(tasks, timeout=WARM_SECONDS + args.seconds, return_when=asyncio.FIRST_EXCEPTION)
    end = clock()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
    light, heavy = clients["light"][1], clients["heavy"][1]
    sums = [[0, *accumulate(each.tokens)] for each in (light, heavy)]
    windows, begin = [], end - args.seconds
    while begin + WINDOW <= end:
        windows.append(
            tuple(each.between(begin, begin + WINDOW, own) for each, own in zip((light, heavy), sums, strict=True))
        )
        begin += STEP
    return [(a, b) for a, b in windows]


def difference(window: tuple[int, int]) -> float:
    return abs(window[0] - window[1]) / max(*window, 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--light", type=int, default=24, help="requests of the light client at a time")
    parser.add_argument("--times", type=int, default=20, help="the heavy client has so many times as many")
    parser.add_argument("--input", type=int, nargs=2, default=[32, 128])
    parser.add_argument("--output", type=int, nargs=2, default=[16, 64])
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument(
        "--flags", default="--max-num-seqs 32 --max-num-queued-reqs 2000 --max-num-queued-tokens 1000000"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", metavar="FILE")
    report.add_line_argument(parser)
    args = parser.parse_args()
    rows, worst = [], {}
    for fairness in ("tokens", "none"):
        with serving(["--fairness", fairness, *args.flags.split()]) as server:
            windows = asyncio.run(run(server.base, args))
        differences = [difference(window) for window in windows]
        worst[fairness] = max(differences)
        light, heavy = (median(column) / WINDOW for column in zip(*windows, strict=True))
        rows.append([f"`--fairness {fairness}`", f"{light:.0f}", f"{heavy:.0f}", f"{median(differences):.1%}",
                     f"{max(differences):.1%}", len(windows)])  # fmt: skip
    passed = worst["tokens"] <= GOAL
    columns = ["", "light, tokens/s", "heavy, tokens/s", "difference, median window", "worst window", "windows"]
    what = (
        f"The light client has {args.light} requests at a time, the heavy one {args.light * args.times}; input "
        f"{args.input[0]} to {args.input[1]} tokens, output {args.output[0]} to {args.output[1]}.\n\n"
    )
    goal = f"\nGoal: within {GOAL:.0%} of each other over any {WINDOW:g} s: {report.mark(passed)}\n"
    report.write(report.heading("Fairness", __doc__) + what + report.table(columns, rows) + goal, args.out)
    report.write_lines(
        [report.Line("two backlogged clients, 20 x the load", "within 5 %", "", "", f"{worst['tokens']:.1%}", passed)],
        args.lines,
    )
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
