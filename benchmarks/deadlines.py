"""Of the requests with deadlines that are taken at 90 % load, how many make them, and is one begun that is late?

    python benchmarks/deadlines.py [--seconds 120] [--places 16] [--share 0.9] [--out FILE.md]

Capacity is what as many clients carry as there are places. Then requests come at random at that share of its rate; each
must have ended within a time that is drawn for it, from once to eight times what a request takes at capacity on the
median. Late at its begin is a request whose answer took longer than its deadline though it was refused by no one and
whose deadline was over before it had waited to its begin: the engine counts those that it drops instead.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from statistics import median

from crowd import NAME, Connection, Reply, be_nice, body_of, closed_loop
from report import Line, add_line_argument, heading, table, write, write_lines
from server import serving
from throughputs import form_flags

GOAL = 0.99
PROMPT, MOST = 32, 32


async def play(base: str, rate: float, usual: float, seconds: float, rng: random.Random) -> list[tuple[float, Reply]]:
    """Deadline and reply of each request."""
    replies: list[tuple[float, Reply]] = []

    async def one() -> None:
        connection, deadline = Connection(base), usual * rng.uniform(1, 8)
        reply = await connection.ask({**body_of(rng, PROMPT, MOST), "timeout": deadline})
        replies.append((deadline, reply))
        connection.close()

    due = start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        while due - start < seconds:
            due += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one())
    return replies


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--form", default="int8/int8", help="weights/K/V")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--places", type=int, default=16)
    parser.add_argument("--share", type=float, default=0.9)
    parser.add_argument("--out")
    add_line_argument(parser)
    args = parser.parse_args()
    rng = random.Random(0)
    flags = [*form_flags(*args.form.split("/")), "--n-slots", "8192", "--max-num-seqs", str(args.places)]
    flags += ["--served-model-name", NAME, *(["--model", args.model] if args.model else [])]
    with serving(flags) as server:
        be_nice()
        asyncio.run(closed_loop(server.base, args.places, 5.0, rng, PROMPT, MOST))  # warms up
        start = time.perf_counter()
        full = asyncio.run(closed_loop(server.base, args.places, max(args.seconds / 4, 10.0), rng, PROMPT, MOST))
        rate = len(full) / (time.perf_counter() - start)
        usual = median(r.seconds for r in full)
        replies = asyncio.run(play(server.base, args.share * rate, usual, args.seconds, rng))
    taken = [(deadline, r) for deadline, r in replies if r.status == 200]
    made = sum(r.seconds <= deadline for deadline, r in taken)
    codes = Counter(r.code for _, r in replies if r.status != 200)
    begun_late = sum(r.seconds - usual > deadline for deadline, r in taken)
    share = made / max(len(taken), 1)
    columns = ["requests", "taken", "made their deadline", "share", "past it by more than a request's time",
               "unreachable (429)", "dropped (504)", "overloaded (429)"]  # fmt: skip
    row = [len(replies), len(taken), made, f"{share:.1%}", begun_late, codes["deadline_unreachable"],
           codes["deadline_exceeded"], codes["overloaded"]]  # fmt: skip
    said = f"{args.share:.0%} of {rate:.2f} requests/s; a request takes {usual:.2f} s at capacity\n\n"
    write(heading("Deadlines", __doc__) + said + table(columns, [row]), args.out)
    lines = [
        Line("deadlines made, of requests taken at 90 % load", f"{GOAL:.0%}", f"{share:.1%}", "", "", share >= GOAL),
        Line("requests begun that were late", "0", str(begun_late), "", "", begun_late == 0),
    ]
    write_lines(lines, args.lines)
    return 0 if all(line.passed for line in lines) else 1


if __name__ == "__main__":
    raise SystemExit(main())
