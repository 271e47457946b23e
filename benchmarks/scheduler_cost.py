"""What does the scheduler cost, and does it grow with the queue?

One iteration of scheduling is `complete` (take the tokens of the batch that returned) and `next_batch` (choose the next
one). Both are timed against the real Scheduler with a pool kept at a given size: whoever ends is replaced by a new
arrival, with the lengths of the paper's trace (input U(32, 512), output U(1, 128)). max_bs requests run, the rest wait:

    places  for a place in the batch: there are slots for everybody who can be in it
    slots   for slots: half a batch's worth of slots, so that the walk ends at a request that does not fit
    deep    as `places`, with three batches in flight, whose requests each walk passes
    users   as `places`, with everything on that many users ask for: iterations bounded by tokens and by a target (so
            that what they take is learnt), 100 clients who share by tokens, weights, three priorities, every tenth
            request in the background, and deadlines, of which none passes

An iteration of `users` also asks who is too late, as the loop does. What the scheduler prepares while the device works
is not timed.

With --idle it sleeps for so many milliseconds before each result, as the loop does while the device works. Then all
that is run is cold, and takes two to seven times as long: as in a server.

With --prefix-caching the scheduler shares prefixes: prompts begin with the same 48 tokens, and the rest is their own.
Then it is also told what it takes to find the 992 tokens that a prompt of 1,000 shares.

    python benchmarks/scheduler_cost.py [--prefix-caching] [--idle 20 --iterations 200] [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
import statistics
import time
from dataclasses import asdict, dataclass

from orcaserve.core import USUAL, Batch, IterationResult, Request, SamplingParams, Terms
from orcaserve.scheduler import Scheduler
from orcaserve.scheduler.policies import PolicySettings, SchedulingPolicy, make_policy
from orcaserve.scheduler.prefix_cache import PrefixCache

MAX_BS = 32
PAGE_SIZE = 16
LONGEST = 512 + 128  # tokens of the trace's longest request
MEAN = 272 + 128 // 2
SHARED = 48
POOL_SIZES = (10, 100, 1_000, 10_000)
ITERATION_SECONDS = 0.009  # the yardstick: a batch of 32 with int8 weights on 2 cores
LIMIT_PERCENT = 1.0
# case -> n_slots, n_workers
CASES = {
    "places": (MAX_BS * (LONGEST + PAGE_SIZE), 1),
    "slots": (MAX_BS // 2 * MEAN, 1),
    "deep": (3 * MAX_BS * (LONGEST + PAGE_SIZE), 3),
    "users": (MAX_BS * (LONGEST + PAGE_SIZE), 1),
}


@dataclass(frozen=True)
class Row:
    case: str
    pool: int
    batch: float  # mean requests in a batch
    next_batch_us: float  # medians
    complete_us: float
    total_us: float
    total_p99_us: float
    percent: float  # of the iteration, by the median


class Arrivals:
    """The paper's trace, without end. The prompts share one list, unless the scheduler reads them."""

    def __init__(self, seed: int, users: bool, distinct: bool) -> None:
        self._users, self._distinct = users, distinct
        self._rng = random.Random(seed)
        self._n = 0
        self._prompt = [1] * LONGEST
        self._distinct = distinct

    def __next__(self) -> Request:
        self._n += 1
        params = SamplingParams(max_tokens=self._rng.randint(1, 128))
        prompt = self._prompt[: self._rng.randint(32, 512)]
        if self._distinct:
            prompt[SHARED:] = [self._rng.randrange(50_000) for _ in prompt[SHARED:]]
        return Request(self._n, prompt, params, terms=self._terms() if self._users else USUAL)

    def _terms(self) -> Terms:
        client, rng = self._rng.randrange(100), self._rng
        return Terms(
            client=f"client {client}",
            weight=1.0 + client % 3,
            priority=rng.choice([0, 0, 0, 0, 1, -1]),
            background=rng.random() < 0.1,
            timeout=86400.0,
            first_token=80000.0,
        )


def microseconds_to_find(n_tokens: int = 1000) -> float:
    """Of the blocks that a prompt of so many tokens shares with one before it; the median."""
    prefixes = PrefixCache(PAGE_SIZE)
    prompt = [random.randrange(50_000) for _ in range(n_tokens)]
    prefixes.add(Request(0, prompt, SamplingParams()), [], n_tokens, 1)
    seconds = []
    for i in range(500):
        request = Request(i, list(prompt), SamplingParams())
        started = time.perf_counter()
        found = prefixes.find(request, ())
        seconds.append(time.perf_counter() - started)
        assert len(found) == (n_tokens - 1) // PAGE_SIZE
    return round(statistics.median(seconds) * 1e6, 1)


def measure(case: str, pool_size: int, iterations: int, caching: bool, idle: float) -> Row:
    n_slots, n_workers = CASES[case]
    prefixes = PrefixCache(PAGE_SIZE) if caching else None
    scheduler = Scheduler(n_slots, MAX_BS, n_workers, PAGE_SIZE, _policy(case, n_workers), prefixes)
    arrivals = Arrivals(pool_size, case == "users", caching)
    for _ in range(pool_size):
        scheduler.add(next(arrivals), now=0.0)
    in_flight: list[Batch] = []
    choosing, taking, sizes = [], [], []
    chose = 0.0  # seconds to choose the batch submitted last
    for i in range(iterations + 200):  # the first ones fill the batch
        while True:
            started = time.perf_counter()
            scheduler.expire(i * ITERATION_SECONDS)
            batch = scheduler.next_batch(i * ITERATION_SECONDS)
            seconds = time.perf_counter() - started
            if batch is None:
                break
            in_flight.append(batch)
            chose = seconds
        scheduler.prepare()
        if idle and i >= 200:
            time.sleep(idle)
        oldest = in_flight.pop(0)
        seconds = 0.005 + 0.0001 * oldest.n_tokens
        result = IterationResult(oldest.iteration, [7] * len(oldest.entries), seconds=seconds)
        started = time.perf_counter()
        progress = scheduler.complete(result)
        took = time.perf_counter() - started
        for news in progress:
            if news.finish_reason is not None:
                scheduler.add(next(arrivals), now=i * ITERATION_SECONDS)
        if i >= 200:
            choosing.append(chose)
            taking.append(took)
            sizes.append(len(oldest.entries))
    totals = sorted(a + b for a, b in zip(choosing, taking, strict=True))
    median = statistics.median(totals)
    return Row(
        case,
        pool_size,
        round(statistics.mean(sizes), 1),
        round(statistics.median(choosing) * 1e6, 1),
        round(statistics.median(taking) * 1e6, 1),
        round(median * 1e6, 1),
        round(totals[len(totals) * 99 // 100] * 1e6, 1),
        round(median / ITERATION_SECONDS * 100, 3),
    )


def _policy(case: str, n_workers: int) -> SchedulingPolicy:
    """As `serve` makes it; plain, but for one case."""
    made_of = PolicySettings(n_workers, LONGEST)
    if case == "users":
        made_of = PolicySettings(n_workers, LONGEST, fairness="tokens", batched_tokens=512, target_itl=0.05)
    return make_policy("iteration-level", made_of)


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost of one iteration's scheduling (next_batch + complete).")
    parser.add_argument("--iterations", type=int, default=5_000, help="measured iterations of each row")
    parser.add_argument("--idle", type=float, default=0.0, metavar="MS", help="sleep so long before each result")
    parser.add_argument("--prefix-caching", action="store_true", help="share prefixes")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    args = parser.parse_args()

    rows = []
    for case in CASES:
        for pool_size in POOL_SIZES:
            gc.collect()
            rows.append(measure(case, pool_size, args.iterations, args.prefix_caching, args.idle / 1e3))
    # Growth: the largest queue against the smallest pool that fills the batch in every case.
    growth = {
        case: round(by_size[10_000] / by_size[100], 2)
        for case in CASES
        for by_size in [{row.pool: row.total_us / row.batch for row in rows if row.case == case}]
    }
    finding = microseconds_to_find() if args.prefix_caching else None
    within = all(row.percent < LIMIT_PERCENT for row in rows)
    if args.json:
        facts = {"python": platform.python_version(), "max_bs": MAX_BS, "iteration_ms": ITERATION_SECONDS * 1e3}
        print(
            json.dumps(
                {**facts, "rows": [asdict(row) for row in rows], "growth": growth, "find_us": finding, "within": within}
            )
        )
    else:
        share = f"% of {ITERATION_SECONDS * 1e3:g} ms"
        print(f"| waiting for | pool | batch | next_batch us | complete us | both us | p99 us | {share} |")
        print("|---|---|---|---|---|---|---|---|")
        for row in rows:
            print(
                f"| {row.case} | {row.pool:,} | {row.batch:.1f} | {row.next_batch_us:.1f} | {row.complete_us:.1f} "
                f"| {row.total_us:.1f} | {row.total_p99_us:.1f} | {row.percent:.2f} |"
            )
        print()
        for case, ratio in growth.items():
            print(f"{case}: cost per request of the batch with 10,000 in the pool / with 100 = {ratio:.2f}")
        if finding is not None:
            print(f"finding the 992 tokens that a prompt of 1,000 shares: {finding} us")
        print(f"below {LIMIT_PERCENT:g} % of an iteration in every row: {'yes' if within else 'NO'}")
    return 0 if within else 1


if __name__ == "__main__":
    raise SystemExit(main())
