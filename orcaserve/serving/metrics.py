"""What the endpoint counts.

Everything is counted once, in plain numbers that cost a fraction of a microsecond; serving/observing/table.py gives
them names when they are read.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from orcaserve.core import EngineFacts, EngineStatus, IterationReport, Request
from orcaserve.serving.observing.distribution import BETWEEN, LATENCY, TOKENS, Distribution
from orcaserve.serving.observing.life import Life
from orcaserve.serving.observing.served_clients import ServedClients, Tally
from orcaserve.serving.observing.table import FAMILIES, Values
from orcaserve.version import __version__

INCREMENTS, INITIATIONS = "increments", "initiations"
_LIVED = ("stop", "length")  # ends of choices that had all their time
_T = TypeVar("_T")


class Replica(Protocol):
    """What is read of each engine when somebody asks."""

    @property
    def present(self) -> bool: ...
    @property
    def status(self) -> EngineStatus: ...


class Snapshot(Collector):
    """Numbers that change no more, so that they can be written on any thread. values: in the order of FAMILIES."""

    def __init__(self, model: str, values: Sequence[Values]) -> None:
        self._model = model
        self._values = values

    def render(self) -> bytes:
        """The text of GET /metrics, in the form that every Prometheus reads.

        OpenMetrics is not offered: the library writes the colon in names as an underscore there (0.26).
        """
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        for family, values in zip(FAMILIES, self._values, strict=True):
            yield from family.written(values, self._model)


class Metrics:
    """One endpoint's numbers. Used on the event loop only.

    replicas: the engines; what is read of them is added up, and also shown for each.
    """

    def __init__(self, model: str, facts: EngineFacts, replicas: Sequence[Replica]) -> None:
        self.facts: EngineFacts = facts
        self._model = model
        self._replicas = replicas
        self._last = [EngineStatus()] * len(replicas)  # what each engine has reported last
        self._last_iteration = [time.monotonic()] * len(replicas)
        self._of_earlier: Counter[str] = Counter()  # what engines that are gone had counted
        self.engine_restarts: int = 0
        self.prompt_tokens: int = 0
        self.generation_tokens: int = 0
        self.begun_tokens: int = 0  # input of choices that were begun
        self.cached_tokens: int = 0  # of these
        self.slots_wasted: int = 0
        self.ignored_fields: int = 0
        self.requests_started: int = 0
        self.finished: Counter[str] = Counter()  # choices, by finish reason
        self.refused: Counter[str] = Counter()  # requests, by error code
        self.clients: ServedClients = ServedClients()
        self.queue: Distribution = Distribution(LATENCY)
        self.initiation: Distribution = Distribution(LATENCY)
        self.increments: Distribution = Distribution(LATENCY)
        self.inference: Distribution = Distribution(LATENCY)
        self.first_token: Distribution = Distribution(LATENCY)
        self.between_tokens: Distribution = Distribution(BETWEEN)
        self.per_token: Distribution = Distribution(BETWEEN)
        self.end_to_end: Distribution = Distribution(LATENCY)
        self.normalized: Distribution = Distribution(BETWEEN)
        self.request_prompt: Distribution = Distribution(TOKENS)
        self.request_generation: Distribution = Distribution(TOKENS)
        self.request_max: Distribution = Distribution(TOKENS)
        self.iteration_tokens: Distribution = Distribution(TOKENS)
        self.iteration_requests: Distribution = Distribution(TOKENS[:11])
        self.iteration_seconds: dict[str, Distribution] = {
            phase: Distribution(BETWEEN) for phase in (INCREMENTS, INITIATIONS)
        }
        self.scheduler_seconds: float = 0.0

    # What happens.

    def on_report(self, replica: int, report: IterationReport) -> None:
        """Called with each report of the engine with this number."""
        status = report.status
        self.scheduler_seconds += status.scheduler_seconds
        last, self._last[replica] = self._last[replica], status
        if status.iteration == last.iteration:
            return
        self._last_iteration[replica] = time.monotonic()
        self.iteration_tokens.observe(status.batch_tokens)
        self.iteration_requests.observe(status.n_running)
        phase = INITIATIONS if status.batch_initiations else INCREMENTS
        self.iteration_seconds[phase].observe(status.iteration_seconds)

    def on_restart(self, replica: int) -> None:
        """Called when another engine has taken the place of one that is gone; it counts its iterations anew."""
        self.engine_restarts += 1
        last = self._last[replica]
        for name in ("iteration", "n_preempted", "n_recomputed", "n_late"):
            self._of_earlier[name] += getattr(last, name)
        self._last[replica] = EngineStatus()
        self._last_iteration[replica] = time.monotonic()

    def on_begun(self, request: Request, life: Life, tally: Tally) -> None:
        """A choice was in its first batch."""
        assert life.waited is not None
        self.queue.observe(life.waited)
        self.begun_tokens += request.n_input
        self.cached_tokens += life.n_cached
        tally.input += request.n_input

    def on_end(self, request: Request, life: Life, n_output: int) -> None:
        """A choice is over; n_output: the tokens it has."""
        assert life.ended is not None
        self.finished[life.reason] += 1
        if life.begun is not None:
            self.slots_wasted += max(0, request.params.max_tokens - n_output)
        if life.reason not in _LIVED:
            return
        took = life.ended - life.arrival
        self.end_to_end.observe(took)
        self.normalized.observe(took / max(n_output, 1))
        self.request_prompt.observe(request.n_input)
        self.request_generation.observe(n_output)
        self.request_max.observe(request.params.max_tokens)
        if life.initiation is not None:
            self.initiation.observe(life.initiation)
            self.inference.observe(life.initiation + (life.increments or 0.0))
        if life.increments is not None:
            self.increments.observe(life.increments)
            if n_output > 1:
                self.per_token.observe(life.increments / (n_output - 1))

    # What is asked.

    def snapshot(self) -> Snapshot:
        """All numbers as they are now."""
        return Snapshot(self._model, [family.values(self) for family in FAMILIES])

    def render(self) -> bytes:
        """As Snapshot.render, of now."""
        return self.snapshot().render()

    @property
    def build(self) -> dict[tuple[str, ...], float]:
        return {(__version__,): 1.0}

    @property
    def n_slots(self) -> int:
        return len(self._replicas) * self.facts.n_slots

    @property
    def n_running(self) -> float:
        """EngineStatus.n_running is of the last batch, and stays when all is over."""
        return self.summed("n_live") - self.summed("n_waiting")

    @property
    def iteration_age(self) -> float:
        return time.monotonic() - max(self._last_iteration)

    @property
    def iteration_ages(self) -> dict[tuple[str, ...], float]:
        now = time.monotonic()
        return {(str(number),): now - at for number, at in enumerate(self._last_iteration)}

    @property
    def client_tokens(self) -> dict[tuple[str, ...], float]:
        found: dict[tuple[str, ...], float] = {}
        for client, n_input, n_output in self.clients.read():
            found[client, "prompt"] = n_input
            found[client, "generation"] = n_output
        return found

    def of_replicas(self, read: Callable[[Replica], float]) -> dict[tuple[str, ...], float]:
        return {(str(number),): read(replica) for number, replica in enumerate(self._replicas)}

    def summed(self, name: str) -> float:
        """A field of EngineStatus that says how things are, of all engines."""
        return float(sum(getattr(replica.status, name) for replica in self._replicas))

    def total(self, name: str) -> float:
        """A field of EngineStatus that counts, of all engines there are and were."""
        return float(self._of_earlier[name] + sum(getattr(last, name) for last in self._last))

    @staticmethod
    def by_label(values: Mapping[str, _T]) -> dict[tuple[str, ...], _T]:
        return {(name,): value for name, value in values.items()}
