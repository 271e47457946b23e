"""MeasuredEngine: scheduler and worker in this process, without text, and when each token came."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, cycle, pairwise
from queue import SimpleQueue

from orcaserve.config import EngineConfig
from orcaserve.core import EngineError, Grammar, IterationReport, Request, SamplingParams
from orcaserve.core.admission import fan_out
from orcaserve.engine.host import EngineHost


@dataclass(frozen=True, slots=True)
class IterationTime:
    """One iteration: its requests, its input tokens, and the seconds the worker spent on it."""

    requests: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """What became of some requests that were handed over together. Times are seconds since then.

    token_times: per request, when each of its tokens arrived. iterations: in order.
    """

    token_times: list[list[float]]
    iterations: list[IterationTime]

    @property
    def seconds(self) -> float:
        """Until the last token of all."""
        return max(times[-1] for times in self.token_times)

    @property
    def first_token_seconds(self) -> list[float]:
        return [times[0] for times in self.token_times]

    @property
    def decode_seconds(self) -> float:
        """From when every request has its first token until the last token of all."""
        return self.seconds - max(self.first_token_seconds)

    @property
    def gaps(self) -> list[float]:
        """Seconds between a request's consecutive tokens, of all requests."""
        return [later - earlier for times in self.token_times for earlier, later in pairwise(times)]


class MeasuredEngine:
    """A loaded engine. One call at a time; close it, or use `with`.

    load_seconds: what loading took. Raises what EngineHost.load raises.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._news: SimpleQueue[tuple[float, IterationReport | None]] = SimpleQueue()  # None: the engine has failed
        self._ids = count(1)
        self._adapters = tuple(adapter.number for adapter in config.adapters.modules)
        self._rng = random.Random(0)
        started = time.perf_counter()
        self._host = EngineHost.load(config, self._take, lambda _: self._take(None))
        self.load_seconds = time.perf_counter() - started
        self.facts = self._host.facts

    def _take(self, report: IterationReport | None) -> None:
        self._news.put((time.perf_counter(), report))

    def random_prompts(self, batch: int, length: int) -> list[list[int]]:
        """Prompts of ordinary token ids, equal in length; new ones at every call, the same in every process."""
        low, high = (100, 40_000) if self.facts.vocab_size > 40_000 else (0, self.facts.vocab_size - 1)
        return [[self._rng.randint(low, high) for _ in range(length)] for _ in range(batch)]

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        gen: int,
        temperature: float = 0,
        grammar: Grammar | None = None,
        adapters: Sequence[int] = (),
    ) -> Run:
        """Generate exactly `gen` tokens after every prompt, all prompts handed over at once.

        grammar: of texts that can be so long. adapters: the number of each prompt's, 0 = none; without: those that were
        loaded from the start, in turn. Raises InvalidRequest if they cannot be served, EngineError if one of them or
        the engine fails.
        """
        requests = [self.request(prompt, gen, temperature, grammar) for prompt in prompts]
        for request, adapter in zip(requests, adapters or cycle(self._adapters), strict=False):
            request.adapter = adapter
        started = time.perf_counter()
        self.submit(requests)
        return self._collect(requests, started)

    def request(
        self, prompt: Sequence[int], gen: int, temperature: float = 0, grammar: Grammar | None = None
    ) -> Request:
        """One that generates exactly `gen` tokens. Raises InvalidRequest if it cannot be served."""
        params = SamplingParams(max_tokens=gen, ignore_eos=True, temperature=temperature, seed=1, grammar=grammar)
        (request,) = fan_out(self._ids, prompt, params, self.facts)
        return request

    def submit(self, requests: Sequence[Request]) -> None:
        """Hand requests over; `news` tells of them. Raises EngineError if the engine has failed."""
        self._host.submit(requests)

    def news(self) -> tuple[float, IterationReport]:
        """The next report, waited for, and when it came (perf_counter). Raises EngineError if the engine fails."""
        now, report = self._news.get()
        if report is None:
            raise EngineError("the engine has failed; its log tells why")
        return now, report

    def _collect(self, requests: Sequence[Request], started: float) -> Run:
        times: dict[int, list[float]] = {request.id: [] for request in requests}
        iterations: list[IterationTime] = []
        n_live = len(requests)
        while n_live:
            now, report = self.news()
            status = report.status
            iterations.append(IterationTime(status.n_running, status.batch_tokens, status.iteration_seconds))
            for news in report.progress:
                if news.error is not None:
                    raise EngineError(news.error)
                if news.token is not None:
                    times[news.request_id].append(now - started)
                n_live -= news.finish_reason is not None
        return Run(list(times.values()), iterations)

    def close(self) -> None:
        self._host.close()

    def __enter__(self) -> MeasuredEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
