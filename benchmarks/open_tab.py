"""Does a tab that stays open for a day, or fifty of them, grow, or have the server grow?

    python benchmarks/open_tab.py [--iterations 300000] [--milliseconds 0.5] [--requests 16] [--tabs 50] [--out FILE.md]

A headless Chromium shows the live schedule of a real endpoint and engine, whose worker has no model and takes a given
time for an iteration (as benchmarks/endpoint_cost.py), so that hours of iterations pass in minutes. The page keeps the
last 20,000; what is measured is its heap after a collection of garbage, its nodes and its listeners, at ten moments of
the run, and the memory of endpoint and engine. Then the tabs together, and what the server keeps when all are closed.
Needs the extra `dev` and Chromium.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crowd import children, resident
from endpoint_cost import NAME, PROMPT
from playwright.sync_api import Page, sync_playwright
from report import heading, table, write
from server import Server, started
from stream_client import StreamClient

HERE = Path(__file__).parent
GROWTH = 1.05  # the last three moments by the three before them
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MOMENTS = 10
NEWEST = "Position in the schedule"


@dataclass(frozen=True)
class Moment:
    """What a page and its server held: MiB, counts."""

    iterations: int
    heap: float
    nodes: int
    listeners: int
    server: float

    @property
    def row(self) -> list[str]:
        return [f"{self.iterations}", f"{self.heap:.2f}", f"{self.nodes}", f"{self.listeners}", f"{self.server:.1f}"]


def held(server: Server) -> float:
    """MiB of the endpoint and all below it."""
    pid = server.process.pid
    return sum(resident(each) for each in (pid, *children(pid)))


def shown(page: Page) -> int:
    """The number of iterations that have come to the page."""
    text = page.get_by_label(NEWEST).get_attribute("aria-valuetext") or ""
    return int(text.rsplit(" ", 1)[-1]) if text[-1:].isdigit() else 0


@contextmanager
def busy(server: Server, n: int) -> Iterator[None]:
    """n streams all the time; each is over soon, and the next begins."""
    rng, over = random.Random(0), threading.Event()
    fields = {"ignore_eos": True, "temperature": 0, "model": NAME, "stream": True}

    def ask() -> None:
        with StreamClient(server.base, n) as client:
            while not over.is_set():
                prompts = [[rng.randint(100, 40000) for _ in range(PROMPT)] for _ in range(n)]
                lengths = [rng.randint(20, 200) for _ in range(n)]
                bodies = [{"prompt": p, "max_tokens": m, **fields} for p, m in zip(prompts, lengths, strict=True)]
                client.run("/v1/completions", bodies)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def open_schedule(browser: Any, server: Server) -> Page:
    page: Page = browser.new_page()
    page.goto(server.base + "/")
    page.get_by_role("tab", name="Schedule").click()
    return page


def measure_one(page: Page, server: Server, n_iterations: int) -> list[Moment]:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    found: list[Moment] = []
    while len(found) < MOMENTS:
        page.wait_for_timeout(500)
        if (iterations := shown(page)) < n_iterations * (len(found) + 1) / MOMENTS:
            continue
        session.send("HeapProfiler.collectGarbage")
        metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
        counts = [int(metrics[name]) for name in ("Nodes", "JSEventListeners")]
        found.append(Moment(iterations, metrics["JSHeapUsedSize"] / 2**20, *counts, held(server)))
        print(*found[-1].row, flush=True)
    return found


def growth(values: list[float]) -> float:
    return sum(values[-3:]) / sum(values[-6:-3])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=300_000)
    parser.add_argument("--milliseconds", default="0.5", help="of an iteration")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tabs", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0, help="that all tabs are open")
    parser.add_argument("--out")
    args = parser.parse_args()
    if CHROMIUM is None:
        raise SystemExit("there is no Chromium (Debian: apt install chromium)")
    environment = {**os.environ, "STAND_IN": args.milliseconds}
    command = [sys.executable, str(HERE / "endpoint_cost.py"), "--serve"]
    with started(command, "/ready", environment) as server, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        with busy(server, args.requests):
            begin = time.perf_counter()
            moments = measure_one(open_schedule(browser, server), server, args.iterations)
            took = time.perf_counter() - begin
            alone = held(server)
            pages = [open_schedule(browser, server) for _ in range(args.tabs - 1)]
            time.sleep(args.seconds)
            live = sum(shown(page) > 0 for page in pages)
            together = held(server)
        browser.close()
        time.sleep(3)
        afterwards = held(server)
    heap, memory = (growth([getattr(m, name) for m in moments]) for name in ("heap", "server"))
    columns = ["iterations", "heap of the page, MiB", "nodes", "listeners", "endpoint and engine, MiB"]
    text = heading("A tab that stays open", __doc__) + table(columns, [m.row for m in moments])
    text += (
        f"\n{moments[-1].iterations} iterations in {took:.0f} s, of {args.requests} requests at a time. The last three "
        f"by the three before: heap {heap:.3f}, server {memory:.3f} (goal: at most {GROWTH:g}). With {args.tabs} tabs, "
        f"of which {live + 1} show it: endpoint and engine {alone:.1f} MiB before, {together:.1f} MiB with them, "
        f"{afterwards:.1f} MiB when they are closed.\n"
    )
    write(text, args.out)
    return 0 if max(heap, memory) <= GROWTH and live == len(pages) else 1


if __name__ == "__main__":
    raise SystemExit(main())
