"""Traces, read by a collector of spans: what is in them, whose they are, and what a lost collector costs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes, server_attributes, url_attributes

sys.path.insert(0, str(Path(__file__).parents[2]))
from otlp_collector import Collector, Span

from orcaserve.core import ConfigError
from orcaserve.serving.observing import traces as module
from orcaserve.serving.observing.traces import traces_for

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
OUR_OWN = ("orcaserve.", "gen_ai.latency.")


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


@pytest.fixture
def traced(other_server: Any, collector: Collector) -> Any:
    return other_server(traces=traces_for(collector.url, {}))


def names(spans: list[Span]) -> list[str]:
    return [span.name for span in spans]


def test_a_completion(traced: Any, collector: Collector) -> None:
    answer = traced.complete(max_tokens=5, top_k=3, temperature=0.5).json()
    spans = collector.wait_for(4)
    assert collector.paths == ["/v1/traces"]
    assert sorted(names(spans)) == ["increments", "initiation", "queue", "text_completion tiny"]
    by_name = {span.name: span for span in spans}
    root = by_name["text_completion tiny"]
    assert (
        root.attributes
        | {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "orcaserve",
            "gen_ai.request.model": "tiny",
            "gen_ai.response.model": "tiny",
            "gen_ai.response.id": answer["id"],
            "gen_ai.request.max_tokens": 5,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.top_k": 3,
            "gen_ai.usage.input_tokens": answer["usage"]["prompt_tokens"],
            "gen_ai.usage.output_tokens": 5,
            "gen_ai.response.finish_reasons": ["length"],
            "http.request.method": "POST",
            "http.route": "/v1/completions",
            "http.response.status_code": 200,
            "server.address": "127.0.0.1",
            "server.port": traced.port,
        }
        == root.attributes
    )
    assert "error.type" not in root.attributes and root.status == 0 and root.kind == 2 and not root.parent_id
    assert root.resource["service.name"] == "orcaserve" and root.resource["service.version"]
    queue, initiation, increments = (by_name[name] for name in ("queue", "initiation", "increments"))
    for part in (queue, initiation, increments):
        assert part.trace_id == root.trace_id and part.parent_id == root.span_id
        assert root.start <= part.start <= part.end <= root.end
    assert queue.end == initiation.start and initiation.end == increments.start
    assert increments.attributes["orcaserve.output_tokens"] == 5
    known = {
        value
        for names_of in (gen_ai_attributes, error_attributes, http_attributes, server_attributes, url_attributes)
        for name, value in vars(names_of).items()
        if name.isupper()
    }
    assert {name for name in root.attributes if not name.startswith(OUR_OWN)} <= known


def test_a_chat_of_several_choices(traced: Any, collector: Collector) -> None:
    traced.chat(max_tokens=2, n=3)
    spans = collector.wait_for(10)
    root = next(span for span in spans if span.name == "chat tiny")
    assert root.attributes["gen_ai.request.choice.count"] == 3 and root.attributes["gen_ai.usage.output_tokens"] == 6
    assert root.attributes["gen_ai.response.finish_reasons"] == ["length"] * 3
    assert len({span.attributes["orcaserve.request.number"] for span in spans if span is not root}) == 3


def test_a_text_of_many_choices_has_some_of_them_told(traced: Any, collector: Collector) -> None:
    traced.complete(max_tokens=1, n=40)
    traced.complete(max_tokens=1)
    spans = collector.wait_for(4 + 1 + 3 * module.MAX_CHOICES)
    assert names(spans).count("queue") == module.MAX_CHOICES + 1


@pytest.mark.parametrize("flags", ["01", "00"])
def test_the_trace_of_the_client_goes_on_if_it_is_sampled(traced: Any, collector: Collector, flags: str) -> None:
    body = {"model": "tiny", "prompt": "the", "max_tokens": 2}
    given = f"00-{TRACE}-{PARENT}-{flags}"
    traced.post("/v1/completions", body, traceparent=given, tracestate="vendor=1", **{"x-request-id": "mine"})
    traced.post("/v1/completions", body, traceparent="00-nonsense-01")
    spans = collector.wait_for(4 if flags == "00" else 8)
    continued = [span for span in spans if span.trace_id == TRACE]
    assert len(continued) == (0 if flags == "00" else 4)
    if continued:
        [root] = [span for span in continued if span.kind == 2]
        assert root.parent_id == PARENT and root.attributes["orcaserve.request.client_id"] == "mine"
    assert len(spans) - len(continued) == 4


def test_what_fails(traced: Any, collector: Collector) -> None:
    traced.complete(max_tokens=-1)
    traced.engine.fail_after = 2
    traced.complete(max_tokens=5)
    traced.engine.fail_after = None
    traced.http.get("/no/such/path")
    traced.http.get("/metrics")
    traced.post("/tokenize", {"model": "tiny", "prompt": "the"})
    spans = collector.wait_for(6)
    roots = {span.attributes["http.response.status_code"]: span for span in spans if span.kind == 2}
    assert roots[400].name == "POST /v1/completions" and roots[400].attributes["error.type"] == "invalid_value"
    assert roots[400].status == 0  # the client's mistake is no error of the server
    assert roots[500].name == "text_completion tiny" and roots[500].status == 2 and roots[500].attributes["error.type"]
    assert roots[500].attributes["gen_ai.usage.output_tokens"] == 2
    assert roots[200].name == "POST /tokenize" and "gen_ai.request.model" not in roots[200].attributes
    assert len(roots) == 3


def test_no_text_is_in_them(traced: Any, collector: Collector) -> None:
    body = {"model": "tiny", "prompt": "the secret words", "stop": ["hidden"], "user": "someone", "max_tokens": 1}
    traced.post("/v1/completions", body, authorization="Bearer sk-0123456789")
    told = repr(collector.wait_for(3))
    assert all(word not in told for word in ("secret", "hidden", "someone", "sk-0123"))


def test_a_collector_that_is_away(other_server: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Requests are served as ever, one warning is logged; when it comes back, so do the spans."""
    gone = Collector()
    gone.close()
    caplog.set_level(logging.INFO)
    found = traces_for(gone.url, {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"})
    assert found is not None
    found._exporter._client._timeout = 0.2  # type: ignore[attr-defined]
    server = other_server(traces=found)
    for _ in range(3):
        assert server.complete(max_tokens=2).status_code == 200
        server.wait_until(lambda: found.n_dropped > 0, 20)
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1 and "dropped" in warnings[0] and str(gone.port) in warnings[0]
    back = Collector(gone.port)
    try:
        server.wait_until(lambda: _served(server) and bool(back.spans), 20)
        server.wait_until(lambda: "again" in caplog.text, 20)
    finally:
        back.close()


def _served(server: Any) -> bool:
    return bool(server.complete(max_tokens=1).status_code == 200)


def test_a_collector_that_hangs(
    other_server: Any, collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What waits is bounded, the rest is dropped, and the server still ends."""
    monkeypatch.setattr(module, "MAX_WAITING", 4)
    collector.let_go.clear()
    found = traces_for(collector.url, {})
    assert found is not None
    server = other_server(traces=found)
    server.wait_until(lambda: _served(server) and found.n_dropped >= 5, 20)
    assert found._waiting.qsize() <= 4
    assert len([r for r in caplog.records if "dropped" in r.getMessage()]) == 1
    server.close()
    assert not found._thread.is_alive() or found._closing.is_set()


def test_what_waits_is_sent_at_the_end(other_server: Any, collector: Collector) -> None:
    server = other_server(traces=traces_for(collector.url, {}))
    server.complete(max_tokens=2)
    server.close()
    assert len(collector.spans) == 4


def test_who_asks_for_traces(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    def asked(flag: str | None, **environment: str) -> str | None:
        found = traces_for(flag, environment)
        if found is None:
            return None
        found.close()
        return str(found._exporter._endpoint)  # type: ignore[attr-defined]

    assert asked(None) is None
    assert asked("http://c:4318") == "http://c:4318/v1/traces" and asked("http://c/own") == "http://c/own"
    assert asked(None, OTEL_EXPORTER_OTLP_ENDPOINT="http://c:4318/") == "http://c:4318/v1/traces"
    assert asked(None, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://c/x", OTEL_EXPORTER_OTLP_ENDPOINT="http://d") == (
        "http://c/x"
    )
    assert asked(None, OTEL_EXPORTER_OTLP_ENDPOINT="http://c", OTEL_SDK_DISABLED="true") is None
    assert asked(None, OTEL_EXPORTER_OTLP_ENDPOINT="http://c", OTEL_TRACES_EXPORTER="none") is None
    assert not caplog.records
    assert asked(None, OTEL_EXPORTER_OTLP_ENDPOINT="c:4317", OTEL_EXPORTER_OTLP_PROTOCOL="grpc") is None
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in caplog.text
    with pytest.raises(ConfigError, match="http/protobuf") as raised:
        asked("http://c", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    assert raised.value.name == "OTEL_EXPORTER_OTLP_PROTOCOL"


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"orcaserve\[otlp\]"):
        traces_for("http://127.0.0.1:4318", {})
    assert traces_for(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}) is None
    assert "orcaserve[otlp]" in caplog.text
