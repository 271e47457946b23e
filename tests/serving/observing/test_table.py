"""The table of metrics: names by the conventions, the documents of it, and what it exports in both formats."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from orcaserve.core import EngineFacts, EngineStatus, IterationReport, Request, SamplingParams
from orcaserve.serving.metrics import Metrics
from orcaserve.serving.observing.life import Life
from orcaserve.serving.observing.served_clients import Tally
from orcaserve.serving.observing.table import FAMILIES

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
EXPECTED = [
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "iteration_tokens_total",
    "num_preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "request_prompt_tokens",
    "request_generation_tokens",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
]


class Replica:
    present = True
    status = EngineStatus(n_live=3, n_waiting=1, n_waiting_tokens=40, n_reserved=20, n_used=5, n_kept=7)


def made() -> Metrics:
    metrics = Metrics('a "model"\n', EngineFacts("tiny", 10, 10, 100, 4, 1), [Replica(), Replica()])
    metrics.finished["stop"] += 1
    metrics.refused["overloaded"] += 1
    metrics.clients.of('x"\\\n')
    return metrics


def test_names_are_by_the_conventions() -> None:
    names = [name for family in FAMILIES for name in family.names]
    assert len(names) == len(set(names))
    assert {f"vllm:{name}" for name in EXPECTED} <= set(names)
    for family in FAMILIES:
        assert family.text and not family.text.endswith(".")
        for name in family.names:
            assert re.fullmatch(r"(orcaserve_|vllm:)[a-z0-9_]+", name)
            assert (family.kind == "counter") == (name.endswith("_total") and name != "vllm:iteration_tokens_total")
            if name.startswith("orcaserve_"):
                assert not re.search(r"_(ms|millis|percent|perc|mib|kb)\b|_count$|_sum$|_bucket$", name)
    assert all("vllm:" not in family.names[0] or len(family.names) == 1 for family in FAMILIES)


def test_the_document_is_this_table() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith(("| `orcaserve_", "| `vllm:"))]
    told = [
        "| `{}` | {} | {} | {} | {} |".format(
            family.names[0],
            family.kind,
            ", ".join(f"`{label}`" for label in family.labels),
            ", ".join(f"`{name}`" for name in family.names[1:]),
            family.text,
        )
        for family in FAMILIES
    ]
    assert rows == told


def test_it_can_be_read() -> None:
    parse, text = text_string_to_metric_families, made().render()
    found = {family.name.removesuffix("_total"): family for family in parse(text.decode())}
    for family in FAMILIES:
        for name in family.names:
            read = found[name.removesuffix("_total")]
            assert read.type == family.kind and read.documentation == family.text and read.samples
            for sample in read.samples:
                assert sample.labels["model_name"] == 'a "model"\n'
                assert set(sample.labels) - {"le"} == {"model_name", *family.labels}
    assert any(s.labels["client"] == 'x"\\\\n' for s in found["orcaserve_client_tokens"].samples)


def value(metrics: Metrics, name: str, **labels: str) -> float:
    samples = [s for family in metrics.snapshot().collect() for s in family.samples if s.name == name]
    [found] = [s.value for s in samples if labels.items() <= s.labels.items()]
    return float(found)


def test_what_was_read_changes_no_more() -> None:
    """It is written on another thread, while the numbers go on."""
    metrics = made()
    metrics.queue.observe(0.1)
    snapshot = metrics.snapshot()
    before = snapshot.render()
    metrics.queue.observe(0.2)
    metrics.finished["stop"] += 1
    metrics.finished["abort"] += 1
    metrics.iteration_seconds["increments"].observe(1.0)
    metrics.clients.of("another").output += 5
    assert snapshot.render() == before != metrics.render()


def test_the_parts_of_a_choice() -> None:
    metrics, tally = made(), Tally("x")
    request = Request(1, [1] * 30, SamplingParams(max_tokens=10))
    life = Life(100.0, 100.5, n_cached=16)
    life.begun = 102.0
    metrics.on_begun(request, life, tally)
    life.first_token, life.last_token, life.ended, life.reason = 105.0, 108.0, 108.0, "stop"
    metrics.on_end(request, life, 4)
    assert value(metrics, "vllm:request_queue_time_seconds_sum") == 2
    assert value(metrics, "vllm:request_prefill_time_seconds_sum") == 3
    assert value(metrics, "vllm:request_decode_time_seconds_sum") == 3
    assert value(metrics, "vllm:request_inference_time_seconds_sum") == 6
    assert value(metrics, "vllm:request_time_per_output_token_seconds_sum") == 1
    assert value(metrics, "vllm:e2e_request_latency_seconds_sum") == 8
    assert value(metrics, "orcaserve_normalized_latency_seconds_sum") == 2
    assert value(metrics, "vllm:request_prompt_tokens_sum") == 30
    assert value(metrics, "vllm:request_generation_tokens_sum") == 4
    assert value(metrics, "vllm:prefix_cache_queries_total") == 30
    assert value(metrics, "orcaserve_prefix_cached_tokens_total") == 16
    assert value(metrics, "orcaserve_kv_slots_wasted_total") == 6
    assert tally.input == 30


def test_a_choice_that_waited_and_left_wasted_nothing() -> None:
    metrics = made()
    life = Life(100.0, 100.5)
    life.ended, life.reason = 108.0, "abort"
    metrics.on_end(Request(1, [1], SamplingParams(max_tokens=10)), life, 0)
    assert value(metrics, "orcaserve_kv_slots_wasted_total") == 0
    assert value(metrics, "vllm:e2e_request_latency_seconds_count") == 0
    assert value(metrics, "orcaserve_requests_finished_total", finished_reason="abort") == 1


def test_one_token_has_no_time_between() -> None:
    metrics = made()
    life = Life(1.0, 1.0, 2.0, 3.0, 3.0, 3.0, "length")
    metrics.on_end(Request(1, [1], SamplingParams(max_tokens=1)), life, 1)
    assert value(metrics, "vllm:request_time_per_output_token_seconds_count") == 0
    assert value(metrics, "vllm:request_decode_time_seconds_count") == 1


def test_iterations_by_phase_and_engine() -> None:
    metrics = made()
    for iteration, initiations in ((1, 2), (2, 0), (3, 0)):
        status = EngineStatus(
            iteration=iteration, batch_initiations=initiations, iteration_seconds=0.5, n_late=iteration
        )
        metrics.on_report(1, IterationReport([], status))
    assert value(metrics, "orcaserve_iteration_seconds_count", phase="initiations") == 1
    assert value(metrics, "orcaserve_iteration_seconds_sum", phase="increments") == 1.0
    metrics._last_iteration[0] -= 100
    age = "orcaserve_replica_last_iteration_age_seconds"
    assert value(metrics, age, replica="0") - value(metrics, age, replica="1") > 99
    assert value(metrics, "orcaserve_last_iteration_age_seconds") < 100
    assert value(metrics, "orcaserve_waiting_tokens") == 80 and value(metrics, "orcaserve_kv_slots_kept") == 14
    metrics.on_restart(1)
    metrics.on_report(1, IterationReport([], EngineStatus(iteration=1, n_late=2)))
    assert value(metrics, "orcaserve_requests_late_total") == 5 and value(metrics, "orcaserve_iterations_total") == 4
