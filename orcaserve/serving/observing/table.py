"""The table of all metrics: names (ours first, then those that dashboards made for vLLM look for), kind, meaning, and
how each is read from what the endpoint counts. docs/metrics.md is this table for people; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from orcaserve.serving.observing.distribution import Distribution

if TYPE_CHECKING:
    from orcaserve.serving.metrics import Metrics

Value = float | Distribution
Values = Mapping[tuple[str, ...], Value]
_CLASSES = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}
MODEL = "model_name"  # the first label of every metric


@dataclass(frozen=True)
class Family:
    """One number, or one for each value of its labels.

    names: as they are exported, a counter's with its `_total`. read: the value, or values by those of the labels.
    """

    kind: Literal["gauge", "counter", "histogram"]
    names: tuple[str, ...]
    text: str
    read: Callable[[Metrics], Value | Values]
    labels: tuple[str, ...] = ()

    def values(self, metrics: Metrics) -> Values:
        """As they are now, by the values of the labels."""
        found = self.read(metrics)
        if not isinstance(found, Mapping):
            found = {(): found}
        return {key: value.copy() if isinstance(value, Distribution) else value for key, value in found.items()}

    def written(self, values: Values, model: str) -> Iterator[Metric]:
        for name in self.names:
            family = _CLASSES[self.kind](name, self.text, labels=[MODEL, *self.labels])
            for labels, value in values.items():
                if isinstance(value, Distribution):
                    family.add_metric([model, *labels], value.buckets, value.sum)
                else:
                    family.add_metric([model, *labels], value)
            yield family


def _gauge(names: str, text: str, read: Callable[[Metrics], Value | Values], *labels: str) -> Family:
    return Family("gauge", tuple(names.split()), text, read, labels)


def _counter(names: str, text: str, read: Callable[[Metrics], Value | Values], *labels: str) -> Family:
    return Family("counter", tuple(names.split()), text, read, labels)


def _histogram(names: str, text: str, read: Callable[[Metrics], Value | Values], *labels: str) -> Family:
    return Family("histogram", tuple(names.split()), text, read, labels)


FAMILIES = (
    # What there is now.
    _gauge("orcaserve_build_info", "1; the label tells the server's version", lambda m: m.build, "version"),
    _gauge("orcaserve_requests_running vllm:num_requests_running", "requests that have run an iteration",
           lambda m: m.n_running),
    _gauge("orcaserve_requests_waiting vllm:num_requests_waiting", "requests that have run no iteration yet",
           lambda m: m.summed("n_waiting")),
    _gauge("orcaserve_waiting_tokens", "input tokens of those", lambda m: m.summed("n_waiting_tokens")),
    _gauge("orcaserve_max_batch_size", "most requests in one batch of an engine (max_bs)", lambda m: m.facts.max_bs),
    _gauge("orcaserve_kv_slots", "size of the K/V regions in tokens (n_slots)", lambda m: m.n_slots),
    _gauge("orcaserve_kv_slots_reserved", "slots reserved by admitted requests", lambda m: m.summed("n_reserved")),
    _gauge("orcaserve_kv_slots_used", "slots that hold keys and values of live requests", lambda m: m.summed("n_used")),
    _gauge("orcaserve_kv_slots_kept", "slots that hold prefixes which no live request uses",
           lambda m: m.summed("n_kept")),
    _gauge("vllm:kv_cache_usage_perc", "reserved share of the K/V regions, 0 to 1",
           lambda m: m.summed("n_reserved") / m.n_slots),
    _gauge("orcaserve_last_iteration_age_seconds", "time since an iteration returned, of any engine",
           lambda m: m.iteration_age),
    # Of each engine.
    _gauge("orcaserve_replica_present", "1 if this engine takes work now",
           lambda m: m.of_replicas(lambda replica: replica.present), "replica"),
    _gauge("orcaserve_replica_requests", "unfinished requests of this engine",
           lambda m: m.of_replicas(lambda replica: replica.status.n_live), "replica"),
    _gauge("orcaserve_replica_kv_slots_reserved", "slots reserved in this engine",
           lambda m: m.of_replicas(lambda replica: replica.status.n_reserved), "replica"),
    _gauge("orcaserve_replica_last_iteration_age_seconds",
           "time since an iteration of this engine returned, or since it was started; every iteration passes all "
           "workers of an engine, so that this is the age of the slowest", lambda m: m.iteration_ages, "replica"),
    # What has been done.
    _counter("orcaserve_requests_started_total", "choices handed to the engine", lambda m: m.requests_started),
    _counter("orcaserve_requests_finished_total vllm:request_success_total", "choices by end",
             lambda m: m.by_label(m.finished), "finished_reason"),
    _counter("orcaserve_requests_refused_total", "requests refused, by error code",
             lambda m: m.by_label(m.refused), "code"),
    _counter("orcaserve_requests_late_total",
             "requests that were not begun because they could not make their deadline any more",
             lambda m: m.total("n_late")),
    _counter("orcaserve_ignored_fields_total", "request fields without effect", lambda m: m.ignored_fields),
    _counter("orcaserve_prompt_tokens_total vllm:prompt_tokens_total", "prompt tokens of admitted requests",
             lambda m: m.prompt_tokens),
    _counter("orcaserve_generation_tokens_total vllm:generation_tokens_total", "generated tokens",
             lambda m: m.generation_tokens),
    _counter("orcaserve_client_tokens_total",
             "tokens served by client, for 20 clients; the rest is `other`, and who has no name is `none`. kind: "
             "prompt, once it is begun; generation",
             lambda m: m.client_tokens, "client", "kind"),
    _counter("vllm:prefix_cache_queries_total", "input tokens of choices that were begun", lambda m: m.begun_tokens),
    _counter("orcaserve_prefix_cached_tokens_total vllm:prefix_cache_hits_total",
             "of these, tokens whose keys and values were there already", lambda m: m.cached_tokens),
    _counter("orcaserve_kv_slots_wasted_total",
             "slots for output that a choice was begun with, and that it did not need by its end",
             lambda m: m.slots_wasted),
    _counter("orcaserve_preemptions_total vllm:num_preemptions_total",
             "requests that lost their keys and values to an earlier one: 0 but with --scheduling-policy overcommit",
             lambda m: m.total("n_preempted")),
    _counter("orcaserve_recomputed_tokens_total", "tokens computed once more for that",
             lambda m: m.total("n_recomputed")),
    _counter("orcaserve_iterations_total", "iterations of all engines", lambda m: m.total("iteration")),
    _counter("orcaserve_scheduler_seconds_total", "time that the engine waited for a choice",
             lambda m: m.scheduler_seconds),
    _counter("orcaserve_engine_restarts_total", "engines started in place of one that was lost",
             lambda m: m.engine_restarts),
    # How long it took.
    _histogram("orcaserve_queue_seconds vllm:request_queue_time_seconds", "arrival to first batch", lambda m: m.queue),
    _histogram("orcaserve_initiation_seconds vllm:request_prefill_time_seconds", "first batch to first token",
               lambda m: m.initiation),
    _histogram("orcaserve_increments_seconds vllm:request_decode_time_seconds", "first token to last",
               lambda m: m.increments),
    _histogram("vllm:request_inference_time_seconds", "first batch to last token", lambda m: m.inference),
    _histogram("orcaserve_time_to_first_token_seconds vllm:time_to_first_token_seconds", "arrival to first token",
               lambda m: m.first_token),
    _histogram("orcaserve_inter_token_seconds vllm:inter_token_latency_seconds", "time between tokens of a request",
               lambda m: m.between_tokens),
    _histogram("orcaserve_time_per_output_token_seconds vllm:request_time_per_output_token_seconds",
               "mean time between tokens of a choice", lambda m: m.per_token),
    _histogram("orcaserve_request_seconds vllm:e2e_request_latency_seconds", "arrival to end", lambda m: m.end_to_end),
    _histogram("orcaserve_normalized_latency_seconds", "arrival to end, per generated token", lambda m: m.normalized),
    _histogram("orcaserve_iteration_seconds",
               "time an iteration took the device. phase: increments if it fed nothing else; initiations if it fed the "
               "input of at least one request", lambda m: m.by_label(m.iteration_seconds), "phase"),
    # How much.
    _histogram("orcaserve_request_prompt_tokens vllm:request_prompt_tokens", "prompt tokens of a choice",
               lambda m: m.request_prompt),
    _histogram("orcaserve_request_generation_tokens vllm:request_generation_tokens", "generated tokens of a choice",
               lambda m: m.request_generation),
    _histogram("vllm:request_params_max_tokens", "max_tokens of a choice", lambda m: m.request_max),
    _histogram("orcaserve_iteration_tokens vllm:iteration_tokens_total", "input tokens of an iteration",
               lambda m: m.iteration_tokens),
    _histogram("orcaserve_iteration_requests", "requests of an iteration", lambda m: m.iteration_requests),
)  # fmt: skip
