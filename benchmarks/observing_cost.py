"""What does it cost to observe: microseconds for a token, a choice, a request's line and its trace.

    python benchmarks/observing_cost.py [--rounds 7] [--out FILE.md]

A stand-in hands the endpoint's Choice its news, and the same is done with the counting taken out; the rest is timed
alone. Each figure is the best of the rounds, since a neighbour can only add to it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from report import heading, table, write

from orcaserve.core import Began, EngineFacts, EngineStatus, FinishReason, IterationReport, Progress, Request
from orcaserve.core import SamplingParams as Params
from orcaserve.logs import JsonFormatter, TextFormatter
from orcaserve.serving.http import Exchange
from orcaserve.serving.metrics import Metrics
from orcaserve.serving.observing.access_log import AccessLog
from orcaserve.serving.observing.life import Life
from orcaserve.serving.observing.traces import traces_for
from orcaserve.serving.service import Choice

TOKENS = 200
REPEAT = 200
BLOCKS = 50


class Text:
    """A text stream that makes nothing of tokens."""

    finish_reason: FinishReason | None = None

    def __init__(self) -> None:
        self.n_tokens = 0

    def push(self, token: int | None, reason: FinishReason | None, logprobs: object = None) -> str:
        self.n_tokens += token is not None
        self.finish_reason = reason
        return ""


class Stream:
    def listen(self, take: Callable[[Progress], None]) -> None:
        self.take = take


def best(work: Callable[[], float], rounds: int) -> float:
    return min(work() for _ in range(rounds))


def timed(n: int, work: Callable[[], Any]) -> float:
    """Nanoseconds each, in the best of many short stretches: longer ones have others' work in them."""
    found, stretch = [], max(1, n // BLOCKS)
    for _ in range(BLOCKS):
        started = time.perf_counter_ns()
        for _ in range(stretch):
            work()
        found.append((time.perf_counter_ns() - started) / stretch)
    return min(found)


def counting(metrics: Metrics) -> tuple[float, float]:
    """Nanoseconds of a token, and of a choice beside its tokens, in Choice as it is."""
    stream = Stream()
    client = SimpleNamespace(submit=lambda request: stream)
    service: Any = SimpleNamespace(metrics=metrics, client=client)
    audience: Any = SimpleNamespace(show=lambda choice, text: None)
    news = [Progress(1, 5) for _ in range(TOKENS)]
    per_token, whole = [], []
    for _ in range(REPEAT):
        begun = time.perf_counter_ns()
        choice = Choice(service, 0, Request(1, [1] * 16, Params(max_tokens=TOKENS + 2)), Text(), 0.0, audience)  # type: ignore[arg-type]
        stream.take(Progress(1, 5, began=Began(0.0)))
        started = time.perf_counter_ns()
        for each in news:
            stream.take(each)
        ended = time.perf_counter_ns()
        stream.take(Progress(1, 5, FinishReason.LENGTH))
        over = time.perf_counter_ns()
        assert choice.over
        per_token.append((ended - started) / TOKENS)
        whole.append(started - begun + over - ended)
    return min(per_token), min(whole)


def uncounted() -> float:
    """Nanoseconds of a token, of the same calls without any counting."""
    text = Text()

    def take(news: Progress) -> None:
        if news.finish_reason in (FinishReason.ERROR, FinishReason.CANCELLED):
            raise AssertionError
        text.push(news.token, news.finish_reason, news.logprobs)
        if text.finish_reason is not None:
            raise AssertionError

    news = [Progress(1, 5) for _ in range(TOKENS)]

    def round_() -> None:
        for each in news:
            take(each)

    return timed(REPEAT, round_) / TOKENS


def exchange() -> Exchange:
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "server": ("127.0.0.1", 8000)}
    made = Exchange(scope, None, None, "cmpl-0123456789")  # type: ignore[arg-type]
    made.account.route, made.account.status = "/v1/completions", 200
    life = Life(made.arrival, made.arrival, made.arrival, made.arrival, made.arrival, made.arrival, "length")
    request = Request(1, [1] * 16, Params(max_tokens=TOKENS))
    made.account.choices.append(SimpleNamespace(request=request, life=life, n_output=TOKENS))  # type: ignore[arg-type]
    return made


class Formatting(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        self.format(record)


def lines(form: logging.Formatter | None) -> float:
    """Nanoseconds of an access line; without a form: of one that nobody asked for."""
    logger, handler = logging.getLogger("orcaserve.requests"), Formatting()
    handler.setFormatter(form)
    logger.handlers[:], logger.propagate = [handler], False
    logger.setLevel(logging.WARNING)
    log, made = AccessLog(form is not None), exchange()
    return timed(2000, lambda: log.write(made, time.monotonic()))


def tracing() -> tuple[float, float]:
    """Nanoseconds of a request on the event loop, and of its spans on the thread of traces (without sending them)."""
    traces = traces_for("http://127.0.0.1:9", {})
    assert traces is not None
    traces.close()
    made = exchange()

    def take() -> None:
        traces.take(made, "model", time.monotonic())
        traces._waiting.get_nowait()

    taken = timed(2000, take)
    traces.take(made, "model", time.monotonic())
    ended = traces._waiting.get_nowait()
    assert ended is not None

    def make() -> None:
        traces._make(ended)
        traces._spans.clear()

    return taken, timed(500, make)


async def measured(rounds: int) -> list[list[str]]:
    replicas: Any = [SimpleNamespace(present=True, status=EngineStatus())]
    metrics = Metrics("model", EngineFacts("model", 10, 10, 1000, 8, 1), replicas)
    iteration = [0]

    def report() -> None:
        iteration[0] += 1
        metrics.on_report(0, IterationReport([], EngineStatus(iteration[0], 4, batch_tokens=4)))

    counted = [counting(metrics) for _ in range(rounds)]
    token, bare = min(each[0] for each in counted), best(uncounted, rounds)
    traced = [tracing() for _ in range(rounds)]
    figures = [
        ("a token, counted", token),
        ("a token, the same calls without counting", bare),
        ("so counting costs, a token", token - bare),
        ("a choice, beside its tokens", min(each[1] for each in counted)),
        ("an iteration", best(lambda: timed(5000, report), rounds)),
        ("an access line that nobody asked for", best(lambda: lines(None), rounds)),
        ("an access line as text, without writing it", best(lambda: lines(TextFormatter()), rounds)),
        ("an access line as JSON, without writing it", best(lambda: lines(JsonFormatter()), rounds)),
        ("a trace, on the event loop", min(each[0] for each in traced)),
        ("a trace, on its own thread, without sending it", min(each[1] for each in traced)),
        ("GET /metrics", best(lambda: timed(20, metrics.render), rounds)),
    ]
    return [[what, f"{nanoseconds / 1000:.2f}"] for what, nanoseconds in figures]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = asyncio.run(measured(args.rounds))
    write(heading("What observing costs", __doc__) + table(["what", "µs"], rows), args.out)


if __name__ == "__main__":
    main()
