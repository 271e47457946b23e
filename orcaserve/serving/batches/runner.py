"""Running the lines of a batch: so many at once, each to its end. Online and offline batches alike."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable

from orcaserve.core.engine import EngineFacts
from orcaserve.serving.batches.lines import Line
from orcaserve.serving.inside import Reply

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0  # s before a line that was refused for now is tried again
MAX_FAILURES = 3  # of the engine under one line; then its error is the answer

Ask = Callable[[str, bytes], Awaitable[Reply]]
"""Asks the endpoint. This is the one place where lines of batches become requests."""
Tell = Callable[[Line, Reply], Awaitable[None]]


def lines_at_once(facts: EngineFacts, n_replicas: int, beside_others: bool) -> int:
    """How many lines of batches are with the engine at once.

    Beside others' requests as many as an iteration has places: they give way to the others, so all that would lie idle
    is theirs, but the K/V slots of those that have begun are theirs too. Alone as many again wait, so that no place is
    empty between two requests.
    """
    places = facts.max_bs * facts.n_workers * n_replicas
    return places if beside_others else 2 * places


async def run_lines(lines: Iterable[Line], ask: Ask, tell: Tell, n_at_once: int) -> None:
    """Ask for all lines, in order, `n_at_once` at a time, and tell of each answer as it comes.

    What `tell` raises ends it. Cancelling it gives up the lines under way, of which nothing is told.
    """
    waiting = iter(lines)
    running: set[asyncio.Task[None]] = set()

    async def run(line: Line) -> None:
        await tell(line, await _answer(line, ask))

    try:
        while True:
            while len(running) < n_at_once:
                # A line may be large: it is read on a thread.
                line = await asyncio.to_thread(next, waiting, None)
                if line is None:
                    break
                running.add(asyncio.create_task(run(line)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            failures = [error for task in done if (error := task.exception()) is not None]
            if failures:
                raise failures[0]
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _answer(line: Line, ask: Ask) -> Reply:
    """Ask until there is an answer that would be the same again: a server with too much to do is asked once more."""
    pause, n_failures = FIRST_PAUSE, 0
    while True:
        reply = await ask(line.url, line.body)
        n_failures += reply.status >= 500 and reply.status != 503
        engine_failed = reply.status == 500 and _code(reply) == "engine_error" and n_failures < MAX_FAILURES
        if reply.status not in (429, 503) and not engine_failed:
            return reply
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _code(reply: Reply) -> str | None:
    code: str | None = json.loads(reply.body)["error"]["code"]
    return code
