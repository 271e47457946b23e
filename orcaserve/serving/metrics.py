"""What the endpoint counts, and its Prometheus form: our names, and the names dashboards made for vLLM look for.

Everything is counted once, in plain numbers that cost a fraction of a microsecond; names are given when it is read.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from orcaserve.core import EngineFacts, EngineStatus, IterationReport

_LATENCY = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


class Distribution:
    """A histogram: how many values lay at or below each bound, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, name: str, text: str, model: str) -> HistogramMetricFamily:
        buckets, total = [], 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), total))
        family = HistogramMetricFamily(name, text, labels=["model_name"])
        family.add_metric([model], buckets, self._sum)
        return family


class Replica(Protocol):
    """What is read of each engine when somebody asks."""

    @property
    def present(self) -> bool: ...
    @property
    def status(self) -> EngineStatus: ...


class Metrics(Collector):
    """One endpoint's numbers. Used on the event loop only.

    replicas: the engines; what is read of them is added up, and with more than one also shown for each.
    """

    def __init__(self, model: str, facts: EngineFacts, replicas: Sequence[Replica]) -> None:
        self._model = model
        self._facts = facts
        self._replicas = replicas
        self._last = [EngineStatus()] * len(replicas)  # what each engine has reported last
        self._last_iteration_at = time.monotonic()
        self._earlier_iterations = self._earlier_preempted = self._earlier_recomputed = 0  # of engines that are gone
        self.engine_restarts = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.ignored_fields = 0
        self.begun_tokens = self.cached_tokens = 0  # of prompts that have begun; of those, what was there already
        self.requests_started = 0
        self.finished: Counter[str] = Counter()  # choices, by finish reason
        self.refused: Counter[str] = Counter()  # requests, by error code
        self.first_token = Distribution(_LATENCY)
        self.between_tokens = Distribution(_BETWEEN)
        self.end_to_end = Distribution(_LATENCY)
        self.normalized = Distribution(_BETWEEN)
        self.iteration_tokens = Distribution(_TOKENS)
        self.iteration_requests = Distribution(_TOKENS[:11])
        self.iteration_seconds = Distribution(_BETWEEN)
        self.scheduler_seconds = 0.0
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def on_report(self, replica: int, report: IterationReport) -> None:
        """Called with each report of the engine with this number."""
        status = report.status
        self.scheduler_seconds += status.scheduler_seconds
        if status.iteration == self._last[replica].iteration:
            return
        self._last[replica] = status
        self._last_iteration_at = time.monotonic()
        self.iteration_tokens.observe(status.batch_tokens)
        self.iteration_requests.observe(status.n_running)
        self.iteration_seconds.observe(status.iteration_seconds)

    def on_begin(self, n_input: int, n_cached: int) -> None:
        """Called when a choice has had its first iteration."""
        self.begun_tokens += n_input
        self.cached_tokens += n_cached

    def on_restart(self, replica: int) -> None:
        """Called when another engine has taken the place of one that is gone; it counts its iterations anew."""
        self.engine_restarts += 1
        last = self._last[replica]
        self._earlier_iterations += last.iteration
        self._earlier_preempted += last.n_preempted
        self._earlier_recomputed += last.n_recomputed
        self._last[replica] = EngineStatus()

    def render(self, accept: str) -> tuple[bytes, str]:
        """The text of GET /metrics and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def collect(self) -> Iterator[Metric]:
        statuses, facts = [replica.status for replica in self._replicas], self._facts
        n_slots = len(statuses) * facts.n_slots
        n_waiting = sum(status.n_waiting for status in statuses)
        n_reserved = sum(status.n_reserved for status in statuses)
        # n_running is of the last batch, and stays when all is over
        running = sum(status.n_live for status in statuses) - n_waiting
        iterations = self._earlier_iterations + sum(last.iteration for last in self._last)
        age = time.monotonic() - self._last_iteration_at
        preempted = self._earlier_preempted + sum(last.n_preempted for last in self._last)
        recomputed = self._earlier_recomputed + sum(last.n_recomputed for last in self._last)
        for name, text, value in (
            ("orcaserve_requests_running", "requests that have run an iteration", running),
            ("vllm:num_requests_running", "requests that have run an iteration", running),
            ("orcaserve_requests_waiting", "requests that have run no iteration yet", n_waiting),
            ("vllm:num_requests_waiting", "requests that have run no iteration yet", n_waiting),
            ("orcaserve_kv_slots", "size of the K/V regions (n_slots)", n_slots),
            ("orcaserve_kv_slots_reserved", "slots reserved by admitted requests", n_reserved),
            ("orcaserve_kv_slots_used", "slots that hold keys and values", sum(status.n_used for status in statuses)),
            ("orcaserve_kv_slots_kept", "slots of prefixes that no live request uses", sum(s.n_kept for s in statuses)),
            ("vllm:kv_cache_usage_perc", "reserved share of the K/V regions, 0 to 1", n_reserved / n_slots),
            ("orcaserve_max_batch_size", "most requests in one batch (max_bs)", facts.max_bs),
            ("orcaserve_last_iteration_age_seconds", "time since an iteration returned", age),
        ):
            yield self._gauge(name, text, value)
        if len(statuses) > 1:
            yield from self._of_replicas(statuses)
        for name, text, value in (
            ("orcaserve_prompt_tokens", "prompt tokens of admitted requests", self.prompt_tokens),
            ("vllm:prompt_tokens", "prompt tokens of admitted requests", self.prompt_tokens),
            ("orcaserve_generation_tokens", "generated tokens", self.generation_tokens),
            ("vllm:generation_tokens", "generated tokens", self.generation_tokens),
            ("orcaserve_prefix_cached_tokens", "prompt tokens whose keys and values were there", self.cached_tokens),
            ("vllm:prefix_cache_queries", "prompt tokens that were looked for", self.begun_tokens),
            ("vllm:prefix_cache_hits", "prompt tokens whose keys and values were there", self.cached_tokens),
            ("orcaserve_requests_started", "choices handed to the engine", self.requests_started),
            ("orcaserve_ignored_fields", "request fields without effect", self.ignored_fields),
            ("orcaserve_iterations", "iterations of all engines", iterations),
            ("orcaserve_engine_restarts", "engines started in place of one that was lost", self.engine_restarts),
            ("orcaserve_scheduler_seconds", "time spent choosing batches", self.scheduler_seconds),
            ("orcaserve_preemptions", "requests that lost their keys and values to an earlier one", preempted),
            ("vllm:num_preemptions", "requests that lost their keys and values to an earlier one", preempted),
            ("orcaserve_recomputed_tokens", "tokens computed once more for that", recomputed),
        ):
            yield self._counter(name, text, {(): value}, [])
        finished: dict[tuple[str, ...], float] = {(reason,): n for reason, n in self.finished.items()}
        refused: dict[tuple[str, ...], float] = {(reason,): n for reason, n in self.refused.items()}
        yield self._counter("orcaserve_requests_finished", "choices by end", finished, ["finished_reason"])
        yield self._counter("vllm:request_success", "choices by end", finished, ["finished_reason"])
        yield self._counter("orcaserve_requests_refused", "requests refused, by error code", refused, ["code"])
        for name, text, distribution in (
            ("orcaserve_time_to_first_token_seconds", "arrival to first token", self.first_token),
            ("vllm:time_to_first_token_seconds", "arrival to first token", self.first_token),
            ("orcaserve_inter_token_seconds", "time between tokens of a request", self.between_tokens),
            ("vllm:inter_token_latency_seconds", "time between tokens of a request", self.between_tokens),
            ("orcaserve_request_seconds", "arrival to end", self.end_to_end),
            ("vllm:e2e_request_latency_seconds", "arrival to end", self.end_to_end),
            ("orcaserve_normalized_latency_seconds", "arrival to end, per generated token", self.normalized),
            ("orcaserve_iteration_tokens", "input tokens of an iteration", self.iteration_tokens),
            ("vllm:iteration_tokens_total", "input tokens of an iteration", self.iteration_tokens),
            ("orcaserve_iteration_requests", "requests of an iteration", self.iteration_requests),
            ("orcaserve_iteration_seconds", "time an iteration took the device", self.iteration_seconds),
        ):
            yield distribution.family(name, text, self._model)

    def _of_replicas(self, statuses: Sequence[EngineStatus]) -> Iterator[Metric]:
        for name, text, values in (
            ("orcaserve_replica_present", "1 if it takes work now", [replica.present for replica in self._replicas]),
            ("orcaserve_replica_requests", "unfinished requests", [status.n_live for status in statuses]),
            ("orcaserve_replica_kv_slots_reserved", "slots reserved", [status.n_reserved for status in statuses]),
        ):
            family = GaugeMetricFamily(name, text, labels=["model_name", "replica"])
            for number, value in enumerate(values):
                family.add_metric([self._model, str(number)], value)
            yield family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _counter(self, name: str, text: str, values: dict[tuple[str, ...], float], labels: list[str]) -> Metric:
        family = CounterMetricFamily(name, text, labels=["model_name", *labels])
        for label_values, value in values.items():
            family.add_metric([self._model, *label_values], value)
        return family
