"""What share of a live server's iterations does the scheduler take, with all policies for many users on?

Two servers in turn, plain Algorithm 1 and everything on (bound, target, fairness, prefix reuse; requests of several
clients with priorities and deadlines). The scheduler's seconds over those of the device are what /metrics tells of the
span that is measured: what is in no batch's way (answers, logs, arrivals taken in and lessons learnt while the engine
has all the batches that it can have) is not in it.

    python benchmarks/scheduler_share.py [--seconds 30] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shlex
import time

import httpx
import report
from server import serving

from orcaserve.evaluation.load.prompts import TokenIds
from orcaserve.evaluation.load.server import Address, Server

GOAL = 0.01
WARM_SECONDS = 5.0
PLAIN = "--no-enable-prefix-caching --max-num-batched-tokens 0 --fairness none"
ALL_ON = "--enable-prefix-caching --max-num-batched-tokens 512 --target-itl 200ms --fairness tokens"
SPENT = ("orcaserve_scheduler_seconds_total", "orcaserve_iteration_seconds_sum", "orcaserve_iterations_total")


def spent(base: str) -> list[float]:
    """Seconds of the scheduler and of the device, and iterations, since the start."""
    sums = dict.fromkeys(SPENT, 0.0)
    for line in httpx.get(f"{base}/metrics").text.splitlines():
        name = line.partition("{")[0]
        if name in sums:
            sums[name] += float(line.rpartition(" ")[2])
    return [sums[name] for name in SPENT]


async def run(base: str, args: argparse.Namespace, terms: bool) -> list[float]:
    server, ids = Server(await Address.find(base), "completions", None, 600.0), TokenIds(100, 30_000)
    rng, model = random.Random(args.seed), await server.first_model()
    shared = ids.fields(args.shared, rng)["prompt"]

    async def user(number: int) -> None:
        while True:
            prompt = [*shared, *ids.fields(rng.randint(16, 64), rng)["prompt"]]
            body = {"model": model, "temperature": 0, "ignore_eos": True, "stream": True, "prompt": prompt,
                    "max_tokens": rng.randint(16, 128)}  # fmt: skip
            if terms:
                body |= {"user": f"user {number % 8}", "priority": number % 3, "timeout": 600}
            await server.send(server.request(body), time.perf_counter, lambda _: None)

    users = [asyncio.create_task(user(number)) for number in range(args.users)]
    await asyncio.sleep(WARM_SECONDS)
    before = await asyncio.to_thread(spent, base)
    done, _ = await asyncio.wait(users, timeout=args.seconds, return_when=asyncio.FIRST_EXCEPTION)
    after = await asyncio.to_thread(spent, base)
    for each in users:
        each.cancel()
    await asyncio.gather(*users, return_exceptions=True)
    for each in done:
        each.result()
    return [b - a for a, b in zip(before, after, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=48, help="each has one request at a time")
    parser.add_argument("--flags", default="--max-num-seqs 32", help="of both servers")
    parser.add_argument("--shared", type=int, default=200, help="tokens that all prompts begin with")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", metavar="FILE")
    report.add_line_argument(parser)
    args = parser.parse_args()
    rows, share = [], 0.0
    for name, flags, terms in (("plain", PLAIN, False), ("all on", ALL_ON, True)):
        with serving([*shlex.split(args.flags), *shlex.split(flags)]) as server:
            scheduler, device, n = asyncio.run(run(server.base, args, terms))
        share = scheduler / device
        rows.append([name, f"{n:.0f}", f"{1e3 * device / n:.2f}", f"{1e6 * scheduler / n:.0f}", f"{share:.2%}"])
    passed = share < GOAL
    columns = ["", "iterations", "ms of the device each", "us of the scheduler each", "share"]
    what = (
        f"{args.users} users with a request at a time: {args.shared} shared tokens and 16 to 64 of their own, 16 to "
        f"128 tokens out; `{args.flags}`; all on: `{ALL_ON}`.\n\n"
    )
    goal = f"\nGoal: below {GOAL:.0%} with all on: {report.mark(passed)}\n"
    report.write(report.heading("The scheduler's share", __doc__) + what + report.table(columns, rows) + goal, args.out)
    report.write_lines(
        [report.Line("scheduler time with all policies on", "< 1 %", f"{share:.2%}", "", "", passed)], args.lines
    )
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
