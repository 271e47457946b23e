"""What does it cost to watch the schedule (`GET /v1/schedule`), and to ask for the requests (`GET /v1/requests`)?

    python benchmarks/watch_cost.py [--requests 32] [--milliseconds 9] [--rounds 10] [--out FILE.md]

The endpoint, the engine process, its loop and its scheduler are the real ones; the worker has no model, takes a given
time for an iteration, and leaves the cores alone (as benchmarks/endpoint_cost.py). Streams of tokens run all the time;
rounds without a watcher, with one, with fifty, and with somebody who asks for the requests once a second take turns.
CPU time is the kernel's count, of endpoint and engine; what watchers need themselves is not in it.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from endpoint_cost import NAME, PROMPT, child_of, cpu_time
from report import heading, table, write
from server import Server, started
from stream_client import StreamClient

GOAL = 1.0  # % of a core for one watcher
MANY = 50
HERE = Path(__file__).parent


@contextmanager
def connected(server: Server) -> Iterator[socket.socket]:
    host, _, port = server.base.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        yield connection


@contextmanager
def watching(server: Server, n: int) -> Iterator[list[int]]:
    """n watchers; what is yielded holds the bytes that the first one has got so far."""
    got = [0]
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(server)) for _ in range(n)]

        def read(connection: socket.socket, counts: bool) -> None:
            while part := connection.recv(2**16):
                got[0] += len(part) * counts

        for i, connection in enumerate(connections):
            connection.sendall(b"GET /v1/schedule HTTP/1.1\r\nhost: x\r\n\r\n")
            threading.Thread(target=read, args=(connection, i == 0), daemon=True).start()
        time.sleep(0.5)  # the header is here
        yield got
        for connection in connections:
            connection.shutdown(socket.SHUT_RDWR)
    time.sleep(0.2)


@contextmanager
def asking(server: Server) -> Iterator[list[int]]:
    got, over = [0], threading.Event()
    with connected(server) as connection:

        def ask() -> None:
            while not over.wait(1.0):
                connection.sendall(b"GET /v1/requests HTTP/1.1\r\nhost: x\r\n\r\n")
                got[0] += len(connection.recv(2**20))

        thread = threading.Thread(target=ask)
        thread.start()
        yield got
        over.set()
        thread.join()


@contextmanager
def alone() -> Iterator[list[int]]:
    yield [0]


def measure(args: argparse.Namespace) -> dict[str, list[tuple[float, float, float, float]]]:
    """By what is done beside the streams: shares of a core (endpoint, engine), iterations/s, bytes/s of a watcher."""
    rng = random.Random(0)
    fields = {"max_tokens": args.tokens, "ignore_eos": True, "temperature": 0, "model": NAME, "stream": True}
    environment = {**os.environ, "STAND_IN": args.milliseconds}
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    command = [sys.executable, str(HERE / "endpoint_cost.py"), "--serve"]
    with started(command, "/ready", environment) as server, StreamClient(server.base, args.requests) as client:
        endpoint = server.process.pid
        engine = child_of(endpoint)
        kinds: Sequence[tuple[str, Callable[[], object]]] = (
            ("nobody watches", alone),
            ("one watches", lambda: watching(server, 1)),
            (f"{MANY} watch", lambda: watching(server, MANY)),
            ("requests, once a second", lambda: asking(server)),
        )
        for number in range(args.rounds + 1):
            for name, beside in kinds if number % 2 else reversed(kinds):
                bodies = [
                    {"prompt": [rng.randint(100, 40000) for _ in range(PROMPT)], **fields} for _ in range(args.requests)
                ]
                with beside() as got:  # type: ignore[attr-defined]
                    before, n_bytes = (cpu_time(endpoint), cpu_time(engine)), got[0]
                    seconds, _ = client.run("/v1/completions", bodies)
                    after, n_bytes = (cpu_time(endpoint), cpu_time(engine)), got[0] - n_bytes
                shares = [
                    sum(b[thread] - a.get(thread, 0.0) for thread in b) / seconds * 100
                    for a, b in zip(before, after, strict=True)
                ]
                if number:  # the first warms up
                    row = (shares[0], shares[1], args.tokens / seconds, n_bytes / seconds)
                    found.setdefault(name, []).append(row)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--milliseconds", default="9", help="of an iteration")
    parser.add_argument("--tokens", type=int, default=300, help="of each request, and so iterations of a round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out")
    args = parser.parse_args()
    found = measure(args)
    usual = [sum(row[:2]) for row in found["nobody watches"]]
    rows = []
    more: dict[str, float] = {}
    for name, measured in found.items():
        more[name] = median(sum(row[:2]) - none for row, none in zip(measured, usual, strict=True))
        columns = [median(row[i] for row in measured) for i in range(4)]
        shown = [f"{columns[0]:.2f}", f"{columns[1]:.2f}", f"{columns[2]:.0f}", f"{columns[3] / 1e3:.1f}"]
        rows.append([name, *shown, f"{more[name]:+.2f}"])
    text = heading("Watching the schedule", __doc__)
    text += (
        f"{args.requests} streams, {args.milliseconds} ms an iteration; medians of {args.rounds} rounds in turn:\n\n"
    )
    names = ["beside", "endpoint, % of a core", "engine, % of a core", "iterations/s", "KB/s of a watcher",
             "both, more than without"]  # fmt: skip
    text += table(names, rows)
    text += f"\nOne watcher costs {more['one watches']:+.2f} % of a core (goal: below {GOAL:g} %).\n"
    write(text, args.out)
    return 0 if more["one watches"] < GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main())
