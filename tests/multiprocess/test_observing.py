"""What a real server shows: all metrics, dashboard and alerts against them, JSON logs of every process, traces."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from server_process import Serve

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))
from observed import BY_PROMETHEUS, expressions, selectors
from otlp_collector import Collector

from orcaserve.serving.observing.table import FAMILIES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

Within = Callable[[float, Callable[[], bool]], bool]
Series = dict[str, list[dict[str, str]]]
FLAGS = ("--port", "0", "--n-slots", "4096", "-t", "1", "--log-format", "json")
SAID = "words that must not be logged"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


@pytest.fixture(scope="module")
def serve(served_model: Path, collector: Collector) -> Iterator[Serve]:
    """Two replicas, watched in every way, of which one has died once; some requests have been served and refused."""
    found = Serve(str(served_model), *FLAGS, "-dp", "2", "--log-requests", "--otlp-traces-endpoint", collector.url)
    try:
        found.complete(SAID, max_tokens=20)
        found.complete(SAID, max_tokens=9, user="someone")
        found.stream(max_tokens=5)
        assert found.post("/v1/completions", prompt=SAID, max_tokens=-1).status_code == 400
        os.kill(found.children[0], signal.SIGKILL)
        until = time.monotonic() + 30
        while found.metric("orcaserve_engine_restarts_total") == 0:
            assert time.monotonic() < until
            time.sleep(0.05)
        found.complete(SAID, max_tokens=3)
        yield found
        assert found.stop() == 0
    finally:
        found.process.kill()


def series(serve: Serve) -> Series:
    """The labels of each series, by its name."""
    found: Series = {}
    for family in text_string_to_metric_families(serve.http.get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def test_every_metric_of_the_table_is_exported_and_nothing_else(serve: Serve) -> None:
    text = serve.http.get("/metrics").text
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert types == {name: family.kind for family in FAMILIES for name in family.names}
    bare = {re.sub(r"_(bucket|count|sum)$", "", name) if name not in types else name for name in series(serve)}
    assert bare == set(types), "every one of them has a value"
    assert len(series(serve)["orcaserve_replica_present"]) == 2


def test_expressions_of_dashboard_and_alerts_find_series(serve: Serve) -> None:
    found = series(serve)
    for where, expression, shown in expressions():
        labels: set[str] = set(BY_PROMETHEUS)
        for name, matched in selectors(expression):
            if name == "up":
                continue
            assert name in found, (where, name)
            labels |= set(found[name][0])
            for each in found[name]:
                assert set(matched) - BY_PROMETHEUS <= set(each), (where, name, matched)
        assert shown <= labels, (where, shown)


def test_the_numbers_are_those_of_the_requests(serve: Serve) -> None:
    served = 20 + 9 + 5 + 3
    assert serve.metric("orcaserve_generation_tokens_total") == served == serve.metric("vllm:generation_tokens_total")
    counts = {
        name: serve.metric(f"vllm:{name}_count")
        for name in (
            "request_queue_time_seconds",
            "request_prefill_time_seconds",
            "request_decode_time_seconds",
            "e2e_request_latency_seconds",
            "request_time_per_output_token_seconds",
        )
    }
    assert set(counts.values()) == {4.0}, counts
    parts = [serve.metric(f"orcaserve_{part}_seconds_sum") for part in ("queue", "initiation", "increments")]
    assert all(part >= 0 for part in parts) and sum(parts) <= serve.metric("orcaserve_request_seconds_sum") + 1e-6
    text = serve.http.get("/metrics").text
    tokens = {
        (labels["client"], labels["kind"]): value
        for family in text_string_to_metric_families(text)
        for name, labels, value, *_ in family.samples
        if name == "orcaserve_client_tokens_total"
    }
    assert sum(value for (_, kind), value in tokens.items() if kind == "generation") == served


def test_all_processes_log_json(serve: Serve, within: Within) -> None:
    assert within(10, lambda: sum("orcaserve.requests" in line for line in serve.log) >= 5)
    lines = [json.loads(line) for line in serve.log]
    assert all({"time", "level", "logger", "process", "message"} <= line.keys() for line in lines)
    assert {line["process"] for line in lines} == {"endpoint", "engine"}
    access = [line for line in lines if line["logger"] == "orcaserve.requests"]
    done = [line for line in access if line.get("output_tokens")]
    assert [line["output_tokens"] for line in done] == [20, 9, 5, 3]
    assert all(line["request_id"].startswith("cmpl-") and line["finish_reason"] == "length" for line in done)
    assert [line["error"] for line in access if line["status"] == 400] == ["invalid_value"]
    assert SAID not in "".join(serve.log) and "someone" not in "".join(serve.log)


def test_traces_arrive(serve: Serve, collector: Collector) -> None:
    spans = collector.wait_for(4 * 4 + 1)
    roots = [span for span in spans if span.kind == 2 and "gen_ai.usage.output_tokens" in span.attributes]
    assert sorted(span.attributes["gen_ai.usage.output_tokens"] for span in roots) == [3, 5, 9, 20]
    for root in roots:
        parts = [span for span in spans if span.parent_id == root.span_id]
        assert [part.name for part in parts] == ["queue", "initiation", "increments"]
        assert all(root.start <= part.start <= part.end <= root.end for part in parts)
    assert SAID not in repr(spans) and "someone" not in repr(spans)


def test_workers_log_json_as_well(served_model: Path) -> None:
    serve = Serve(str(served_model), *FLAGS, "-pp", "2")
    try:
        serve.complete(max_tokens=2)
        assert serve.stop() == 0
    finally:
        serve.process.kill()
    lines = [json.loads(line) for line in serve.log]
    assert {"worker s0r0", "worker s1r0", "endpoint"} <= {line["process"] for line in lines}


def test_no_traces_without_the_extra(served_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that cannot do what it was told ends before anything is loaded, and says what is missing."""
    (tmp_path / "opentelemetry.py").write_text("raise ImportError('as if it were not installed')\n")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    monkeypatch.setenv("PYTHONPATH", path)
    command = [sys.executable, "-m", "orcaserve", "serve", str(served_model), "--port", "0"]
    ended = subprocess.run(
        [*command, "--otlp-traces-endpoint", "http://127.0.0.1:1"], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2 and "orcaserve[otlp]" in ended.stderr and "Traceback" not in ended.stderr
    ended = subprocess.run([*command, "--otlp-traces-endpoint", "ftp://x"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "--otlp-traces-endpoint" in ended.stderr
