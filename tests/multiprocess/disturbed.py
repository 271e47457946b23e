"""A server under streams that something is done to meanwhile: what came of them, and that nothing is left over."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from server_process import Serve, workers

Alive = Callable[[int], bool]
Within = Callable[[float, Callable[[], bool]], bool]
N_STREAMS = 32
FLAGS = ("--port", "0", "--n-slots", "32768", "-t", "1", "--max-num-seqs", "24")


@contextmanager
def serving(
    model: Path,
    flags: Sequence[str],
    folder: Path,
    alive: Alive,
    within: Within,
    inside: Sequence[str] = (),
    tracebacks: bool = False,
) -> Iterator[Serve]:
    """A server that must be as it was at the end: ready, all slots free, and nothing left once it is told to end.

    tracebacks: whether its log may have some.
    """
    serve = Serve(str(model), *FLAGS, *flags, inside=inside)
    try:
        yield serve
        assert within(20, lambda: serve.http.get("/ready").status_code == 200)
        assert within(5, lambda: serve.metric("orcaserve_kv_slots_reserved") == 0)
        assert not list(folder.iterdir())
        group = [serve.engine_pid, *workers(serve.engine_pid).values()]
        assert serve.stop() == 0
        assert within(2, lambda: not any(map(alive, group)))
    finally:
        serve.process.kill()
    assert not list(folder.iterdir())
    assert tracebacks or not any("Traceback" in line for line in serve.log), "".join(serve.log)


class Stream:
    """One event stream, read to its end: text, comments, and what came last."""

    def __init__(self, serve: Serve, **body: Any) -> None:
        self.text, self.comments, self.error, self.done = "", 0, None, False
        self.n_tokens, self.reason = 0, None
        fields = {"model": serve.model, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        with httpx.stream("POST", f"{serve.base}/v1/completions", json=fields | body, timeout=60) as answer:
            for line in filter(None, answer.iter_lines()):
                self._take(line)

    def _take(self, line: str) -> None:
        if line.startswith(":"):
            assert line == ": waiting for the engine"
            self.comments += 1
        elif line == "data: [DONE]":
            self.done = True
        else:
            event = json.loads(line.removeprefix("data: "))
            self.error = event.get("error", self.error)
            if event.get("usage"):
                self.n_tokens = event["usage"]["completion_tokens"]
            for choice in event.get("choices", ()):
                self.text += choice["text"]
                self.reason = choice["finish_reason"] or self.reason


def bodies(max_tokens: int) -> list[dict[str, Any]]:
    """Half of them greedy, half drawn with a seed and every penalty; some end by a stop string."""
    penalties = {"presence_penalty": 0.4, "frequency_penalty": 0.3, "repetition_penalty": 1.1, "min_tokens": 5}
    return [
        {
            "prompt": f"{i} " * (1 + i % 7),
            "max_tokens": max_tokens + 10 * (i % 5),
            **({"temperature": 1.2, "seed": i, "top_p": 0.95, **penalties} if i % 2 else {"temperature": 0}),
            **({"stop": ["ab", "Q"]} if i % 8 == 3 else {}),
        }
        for i in range(N_STREAMS)
    ]


def run_all(serve: Serve, wanted: list[dict[str, Any]], while_running: Callable[[], None]) -> list[Stream]:
    with ThreadPoolExecutor(len(wanted)) as pool:
        running = [pool.submit(Stream, serve, **body) for body in wanted]
        while_running()
        return [stream.result() for stream in running]


def outcomes(streams: list[Stream]) -> list[tuple[str, int, str | None, bool]]:
    return [(stream.text, stream.n_tokens, stream.reason, stream.done) for stream in streams]


def replaced(serve: Serve, engine: int) -> bool:
    """Is there an engine, another one, and is it ready?"""
    return serve.children not in ([], [engine]) and serve.http.get("/ready").status_code == 200
