"""Does a server that is asked for ten times what it can do still do what it can, as quickly, and say no at once?

    python benchmarks/overload.py [--seconds 300] [--rounds 10] [--connections 512] [--places 16] [--queue 4]
                                  [--out FILE.md]

Capacity: clients for all places and half of the queue (the other half is kept for who was refused), each of which sends
its next request when the last is over. Overload: requests come at ten times the rate that was carried in the first
round, on as many connections as are asked for; who is refused does not come back. Both in turn, for the machine is
quicker at some times than at others. Then a burst: every connection sends one request at the same moment, and whoever
is refused comes back when Retry-After says, until taken. What it said is right if the request was taken no more than
30 % (and the second to which it is rounded) later. The clients run on the same machine, and have of its cores what the
server leaves (SCHED_IDLE); what each process uses is told.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean

import uvloop
from crowd import NAME, Connection, Reply, be_nice, body_of, children, closed_loop, cpu_seconds, resident
from report import Line, add_line_argument, heading, table, write, write_lines
from server import serving
from throughputs import form_flags

TIMES = 10
GOALS = {"p99": 1.3, "goodput": 0.95, "refusal_ms": 50.0, "memory": 1.05, "retry": 0.9}
TOLERANCE = 1.3
RAMP = 2.0  # s after which a load is full
PROMPT, MOST = 32, 32


def p99(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(int(0.99 * len(ordered)), len(ordered) - 1)] if ordered else float("nan")


@dataclass
class Memory:
    """MiB of each process over time."""

    pids: Sequence[int]
    samples: list[list[float]] = field(default_factory=list)

    async def watch(self, period: float) -> None:
        while True:
            self.samples.append([resident(pid) for pid in self.pids])
            await asyncio.sleep(period)

    @property
    def growth(self) -> float:
        """The last third by the second, of the process that grew most: the first third warms up."""
        third = len(self.samples) // 3
        if not third:
            return float("nan")
        columns = list(zip(*self.samples, strict=True))
        return max(mean(c[2 * third :]) / mean(c[third : 2 * third]) for c in columns)


@dataclass(frozen=True)
class Spent:
    """CPU seconds, a second, of endpoint, engine and clients over a span."""

    pids: Sequence[int]
    began: float = field(default_factory=time.perf_counter)
    before: Sequence[float] = ()

    @classmethod
    def since_now(cls, endpoint: int) -> Spent:
        pids = [endpoint, *children(endpoint), os.getpid()]
        return cls(pids, before=[cpu_seconds(pid) for pid in pids])

    @property
    def rates(self) -> list[float]:
        took = time.perf_counter() - self.began
        endpoint, *engine, client = [
            (cpu_seconds(pid) - before) / took for pid, before in zip(self.pids, self.before, strict=True)
        ]
        return [endpoint, sum(engine), client]


@dataclass(frozen=True)
class Phase:
    """Replies, the span in which the load was full (it does not begin nor end so), and the CPU time of that span."""

    replies: Sequence[Reply]
    begin: float
    end: float
    shares: Sequence[float]

    def of(self, status: int) -> list[Reply]:
        return [r for r in self.replies if r.status == status]

    def within(self, status: int) -> list[Reply]:
        return [r for r in self.of(status) if self.begin <= r.ended <= self.end]


@dataclass
class Load:
    """The phases of one kind, together."""

    phases: list[Phase] = field(default_factory=list)

    def seconds(self, status: int) -> list[float]:
        """That each answer of this status took."""
        return [r.seconds for phase in self.phases for r in phase.of(status)]

    def rate(self, status: int) -> float:
        return self._a_second([len(phase.within(status)) for phase in self.phases])

    @property
    def tokens(self) -> float:
        """A second."""
        return self._a_second([sum(r.n_tokens for r in phase.within(200)) for phase in self.phases])

    @property
    def shares(self) -> list[str]:
        return [f"{mean(shares):.3f}" for shares in zip(*(phase.shares for phase in self.phases), strict=True)]

    def _a_second(self, counts: Sequence[int]) -> float:
        return sum(counts) / sum(phase.end - phase.begin for phase in self.phases)


async def at_capacity(base: str, endpoint: int, n: int, seconds: float, rng: random.Random) -> Phase:
    begin = time.perf_counter()
    running = asyncio.create_task(closed_loop(base, n, seconds, rng, PROMPT, MOST))
    await asyncio.sleep(RAMP)
    spent = Spent.since_now(endpoint)
    await asyncio.sleep(seconds - RAMP)
    shares = spent.rates
    return Phase(await running, begin + RAMP, begin + seconds, shares)


async def overload(base: str, endpoint: int, rate: float, n: int, seconds: float, rng: random.Random) -> Phase:
    """Requests at this rate, each on a connection that is free. They are made before the first is sent."""
    connections = [Connection(base) for _ in range(n)]
    requests = [connections[0].request(body_of(rng, PROMPT, MOST)) for _ in range(int(rate * seconds))]
    free = deque(connections)
    for connection in connections:
        await connection.open()
    answers: list[asyncio.Future[Reply]] = []
    spent = None
    begin = due = time.perf_counter()
    for request in requests:
        due += rng.expovariate(rate)
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        if spent is None and due > begin + RAMP:
            spent = Spent.since_now(endpoint)
        if not free:
            await asyncio.wait([answer for answer in answers if not answer.done()], return_when=asyncio.FIRST_COMPLETED)
        connection = free.popleft()
        if not connection.is_open:
            await connection.open()
        answer = connection.send(request)
        answer.add_done_callback(lambda _, connection=connection: free.append(connection))
        answers.append(answer)
    end = time.perf_counter()
    assert spent is not None, "long enough"
    shares = spent.rates
    replies = [await answer for answer in answers]
    for connection in connections:
        connection.close()
    return Phase(replies, begin + RAMP, end, shares)


async def burst(base: str, n: int, rng: random.Random) -> tuple[list[float], int]:
    """Of every first refusal: how long until it was taken, by what it was told; and how many came in at once."""
    ratios: list[float] = []
    n_at_once = 0

    async def client() -> None:
        nonlocal n_at_once
        connection, body = Connection(base), body_of(rng, PROMPT, MOST)
        first: Reply | None = None
        for attempt in range(100):
            reply = await connection.ask(body, attempt)
            if reply.status == 200:
                break
            assert reply.retry_after is not None, reply
            first = first or reply
            await asyncio.sleep(reply.retry_after)
        if first is None:
            n_at_once += 1
        else:
            assert first.retry_after is not None
            ratios.append(max(0.0, reply.sent - first.ended - 1) / first.retry_after)
        connection.close()

    await asyncio.gather(*(client() for _ in range(n)))
    return ratios, n_at_once


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--form", default="int8/int8", help="weights/K/V")
    parser.add_argument("--seconds", type=float, default=300.0, help="of overload, in all rounds together")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--connections", type=int, default=512)
    parser.add_argument("--places", type=int, default=16)
    parser.add_argument("--queue", type=int, default=4)
    parser.add_argument("--out")
    add_line_argument(parser)
    args = parser.parse_args()
    rng = random.Random(0)
    flags = [*form_flags(*args.form.split("/")), "--n-slots", "8192", "--max-num-seqs", str(args.places)]
    flags += ["--max-num-queued-reqs", str(args.queue), "--served-model-name", NAME]
    flags += ["--model", args.model] if args.model else []
    with serving(flags) as server:
        be_nice()
        base, pid, n_full = server.base, server.process.pid, args.places + args.queue // 2
        each = args.seconds / args.rounds
        short = max(each / 2, RAMP + 5.0)
        uvloop.run(closed_loop(base, n_full, 5.0, rng, PROMPT, MOST))  # warms up
        full, over, memory = Load(), Load(), Memory([pid, *children(pid)])

        async def watched(rate: float) -> Phase:
            watching = asyncio.create_task(memory.watch(max(args.seconds / 60, 0.5)))
            try:
                return await overload(base, pid, rate, args.connections, each, rng)
            finally:
                watching.cancel()

        rate = 0.0
        for _ in range(args.rounds):
            full.phases.append(uvloop.run(at_capacity(base, pid, n_full, short, rng)))
            rate = rate or TIMES * full.rate(200)
            over.phases.append(uvloop.run(watched(rate)))
            for load in (full, over):
                last = Load(load.phases[-1:])
                print(f"{last.rate(200):.2f} requests/s, {last.tokens:.0f} tokens/s", flush=True)
        time.sleep(3)  # what was promised to those who did not come back is forgotten
        ratios, n_at_once = uvloop.run(burst(server.base, args.connections, rng))
    statuses = {r.status for load in (full, over) for phase in load.phases for r in phase.replies}
    assert statuses == {200, 429} and not full.seconds(429), statuses
    goodput = over.tokens / full.tokens
    longest, longest_full = p99(over.seconds(200)), p99(full.seconds(200))
    slower, refusal = longest / longest_full, 1000 * p99(over.seconds(429))
    right = mean(ratio <= TOLERANCE for ratio in ratios) if ratios else float("nan")
    rows = [
        ["capacity", f"{full.rate(200):.2f}", f"{full.tokens:.0f}", f"{longest_full:.2f}", "", "", *full.shares],
        [f"{TIMES} x", f"{over.rate(200):.2f}", f"{over.tokens:.0f}", f"{longest:.2f}", f"{over.rate(429):.1f}",
         f"{refusal:.1f}", *over.shares],
    ]  # fmt: skip
    columns = ["", "requests/s", "tokens/s", "p99 of the taken, s", "refusals/s", "p99 of refusals, ms",
               "cores of the endpoint", "of the engine", "of the clients"]  # fmt: skip
    ends = [f"{sample[0]:.0f} + {sum(sample[1:]):.0f}" for sample in (memory.samples[0], memory.samples[-1])]
    said = (
        f"Endpoint and other processes, MiB, at the begin and end of the overload: {ends[0]}, {ends[1]}; last third by "
        f"the second: {memory.growth:.3f}. Burst of {args.connections}: {n_at_once} taken at once; of {len(ratios)} "
        f"refused, {right:.0%} were taken within {TOLERANCE:.0%} of what Retry-After said.\n"
    )
    write(heading("Overload", __doc__) + table(columns, rows) + f"\n{said}", args.out)
    lines = [
        Line("p99 at 10 x overload, by that at capacity", f"{GOALS['p99']:g} x", "", "", f"{slower:.2f} x",
             slower <= GOALS["p99"]),
        Line("goodput at 10 x overload", f"{GOALS['goodput']:.0%}", "", "", f"{goodput:.0%}",
             goodput >= GOALS["goodput"]),
        Line("refusals, p99", f"{GOALS['refusal_ms']:g} ms", f"{refusal:.1f} ms", "", "",
             refusal <= GOALS["refusal_ms"]),
        Line("memory under overload, last third", f"{GOALS['memory']:g} x", "", "", f"{memory.growth:.3f} x",
             memory.growth <= GOALS["memory"]),
        Line("Retry-After right within 30 %", f"{GOALS['retry']:.0%}", f"{right:.0%}", "", "", right >= GOALS["retry"]),
    ]  # fmt: skip
    write_lines(lines, args.lines)
    print("\n".join(f"{line.what}: {line.ours or line.ratio} (goal {line.goal})" for line in lines))
    return 0 if all(line.passed for line in lines) else 1


if __name__ == "__main__":
    raise SystemExit(main())
