"""Do long prompts freeze the streams of others? Plain Algorithm 1 against bounded iterations.

Streams run without an end while prompts of many tokens arrive once a second, each for a short answer. A server with
each setting in turn, some rounds of them in one run. Told of the streams: the time between two tokens (of all gaps,
and the longest of each second, which is what a reader notices); of everything: tokens a second, input and output.

    python benchmarks/bounded_iterations.py [--bounded --target-itl 40ms] [--seconds 30] [--rounds 3] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import report
from server import serving

from orcaserve.evaluation.latency import quantile
from orcaserve.evaluation.load.prompts import TokenIds
from orcaserve.evaluation.load.server import Address, Server

GOAL_RATIO, GOAL_THROUGHPUT = 4.0, 0.95
PLAIN = "--no-enable-prefix-caching --max-num-batched-tokens 0 --fairness none"
BOUNDED = ["--max-num-batched-tokens 256", "--max-num-batched-tokens 128", "--target-itl 80ms"]
WARM_SECONDS = 3.0


@dataclass
class Seen:
    """Of one run, from when all streams are under way. times: of each stream, when its tokens came."""

    begin: float = 0.0
    end: float = 0.0
    times: list[list[float]] = field(default_factory=list)
    n_output: int = 0
    n_input: int = 0
    first_tokens: list[float] = field(default_factory=list)  # seconds that a long prompt waited for its first token
    failed: list[str] = field(default_factory=list)

    @property
    def gaps(self) -> list[float]:
        return [
            later - earlier
            for times in self.times
            for earlier, later in pairwise(times)
            if self.begin <= later <= self.end
        ]

    @property
    def worst_of_seconds(self) -> list[float]:
        worst: dict[tuple[int, int], float] = {}
        for number, times in enumerate(self.times):
            for earlier, later in pairwise(times):
                if self.begin <= later <= self.end:
                    key = number, int(later - self.begin)
                    worst[key] = max(worst.get(key, 0.0), later - earlier)
        return list(worst.values())

    @property
    def rate(self) -> float:
        return (self.n_output + self.n_input) / (self.end - self.begin)


async def run(base: str, args: argparse.Namespace) -> Seen:
    server = Server(await Address.find(base), "completions", None, 600.0)
    ids, seen, clock = TokenIds(100, 30_000), Seen(), time.perf_counter
    model = await server.first_model()
    fields = {"model": model, "temperature": 0, "ignore_eos": True, "stream": True}
    rng = random.Random(args.seed)

    def count(now: float) -> None:
        seen.n_output += seen.begin <= now <= seen.end

    async def stream(under_way: asyncio.Event) -> None:
        times: list[float] = []
        seen.times.append(times)

        def news(now: float) -> None:
            under_way.set()
            times.append(now)
            count(now)

        body = {**fields, **ids.fields(args.stream_prompt, rng), "max_tokens": args.stream_tokens}
        while True:
            await server.send(server.request(body), clock, news)

    async def prompt() -> None:
        body = {**fields, **ids.fields(args.prompt, rng), "max_tokens": args.answer}
        sent, first = clock(), 0.0

        def news(now: float) -> None:
            nonlocal first
            if not first:
                first = now
                if seen.begin <= now <= seen.end:
                    seen.n_input += args.prompt
                    seen.first_tokens.append(now - sent)
            count(now)

        try:
            await server.send(server.request(body), clock, news)
        except Exception as error:
            seen.failed.append(str(error))

    async def arrivals() -> None:
        async with asyncio.TaskGroup() as group:
            due = clock()
            while True:
                group.create_task(prompt())
                due += args.every
                await asyncio.sleep(max(due - clock(), 0))

    under_way = [asyncio.Event() for _ in range(args.streams)]
    tasks = [asyncio.create_task(stream(each)) for each in under_way]
    await asyncio.gather(*(each.wait() for each in under_way))
    tasks.append(asyncio.create_task(arrivals()))
    seen.begin = clock() + WARM_SECONDS
    seen.end = seen.begin + args.seconds
    done, _ = await asyncio.wait(tasks, timeout=WARM_SECONDS + args.seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
    return seen


def cells(seen: Sequence[Seen]) -> list[float]:
    """Medians over rounds: p50, p99, p99.9 and most of the gaps, p50 of the worst of each second (ms); tokens a second;
    first token of long prompts (ms)."""
    ms = [
        [1e3 * quantile(each.gaps, share) for share in (0.5, 0.99, 0.999, 1.0)]
        + [1e3 * median(each.worst_of_seconds), each.rate, 1e3 * quantile(each.first_tokens, 0.5)]
        for each in seen
    ]
    return [median(column) for column in zip(*ms, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", default=PLAIN, help="flags of plain Algorithm 1")
    parser.add_argument("--bounded", nargs="+", default=BOUNDED, help="flags, for each server")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--stream-prompt", type=int, default=32)
    parser.add_argument("--stream-tokens", type=int, default=1500)
    parser.add_argument("--prompt", type=int, default=1500)
    parser.add_argument("--answer", type=int, default=16)
    parser.add_argument("--every", type=float, default=1.0, help="seconds from one prompt to the next")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", metavar="FILE")
    report.add_line_argument(parser)
    args = parser.parse_args()
    settings = [args.plain, *args.bounded]
    runs: dict[str, list[Seen]] = {setting: [] for setting in settings}
    for number in range(args.rounds):
        for setting in settings if number % 2 == 0 else reversed(settings):
            with serving(shlex.split(setting)) as server:
                seen = asyncio.run(run(server.base, args))
            if seen.failed:
                raise SystemExit(f"{setting}: {len(seen.failed)} requests failed: {seen.failed[0]}")
            runs[setting].append(seen)
    plain = cells(runs[args.plain])
    rows, best, passed = [], 0.0, False
    for setting in settings:
        own = cells(runs[setting])
        ratio, share = plain[1] / own[1], own[5] / plain[5]
        rows.append([f"`{setting}`", *(f"{x:.1f}" for x in own[:5]), f"{own[5]:.0f}", f"{own[6]:.0f}",
                     f"{ratio:.2f}", f"{plain[4] / own[4]:.2f}", f"{share:.2f}"])  # fmt: skip
        if setting != args.plain and share >= GOAL_THROUGHPUT and ratio > best:
            best, passed = ratio, ratio >= GOAL_RATIO
    columns = ["server", "p50, ms", "p99", "p99.9", "most", "worst of a second, median", "tokens/s",
               "first token of a long prompt, ms", "p99: plain / this", "worst of a second: plain / this",
               "tokens/s: this / plain"]  # fmt: skip
    what = (
        f"{args.streams} streams; a prompt of {args.prompt} tokens every {args.every:g} s for {args.answer} tokens; "
        f"{args.seconds:g} s, {args.rounds} rounds, medians. Times between tokens are of the streams alone.\n\n"
    )
    goal = f"\nGoal: p99 {GOAL_RATIO:g} x lower at {GOAL_THROUGHPUT:.0%} of the throughput: {report.mark(passed)}\n"
    report.write(report.heading("Bounded iterations", __doc__) + what + report.table(columns, rows) + goal, args.out)
    report.write_lines(
        [report.Line("p99 between tokens beside long prompts", "4 x lower", "", "plain", f"{best:.2f}", passed)],
        args.lines,
    )
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
