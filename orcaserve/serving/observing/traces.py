"""Traces: a span for each request, with one below it for each part of its life, sent to an OpenTelemetry collector.

The only place that imports OpenTelemetry, an optional extra (orcaserve[otlp]), and only when traces are asked for.
Requests are handed over when they have ended; spans are made and sent on a thread of their own. A collector that is
slow or away costs spans, never a request.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from orcaserve.config import check_url
from orcaserve.core import ConfigError
from orcaserve.serving.http import Exchange
from orcaserve.serving.observing.account import Account, Outcome
from orcaserve.serving.observing.life import Life
from orcaserve.version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

FLAG = "--otlp-traces-endpoint"
TRACES_ENDPOINT, ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
MAX_WAITING = 2048  # requests that have ended and are not sent yet; what comes beside them is dropped
LINGER = 0.5  # s to collect spans for one message
MAX_TOGETHER = 256  # requests in one message
LAST_WORDS, LAST_BREATH = 1.5, 0.5  # s for what is left to be sent at the end, and for who hangs to give up
MAX_CHOICES = 16  # of a request, with spans of their own
PROVIDER = "orcaserve"

_log = logging.getLogger(__name__)


def traces_for(flag: str | None, environment: Mapping[str, str]) -> Traces | None:
    """Who sends the traces, if the flag or the environment asks for any.

    Raises ConfigError if the flag does and they cannot be sent; what only the environment asks for is then left out,
    with a warning: it may have been set for all programs of a machine.
    """
    off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    off = off or environment.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() not in ("otlp", "")
    if flag is not None:
        return _open(_with_path(flag), environment)
    given = {name: environment.get(name, "").strip() for name in (TRACES_ENDPOINT, ENDPOINT)}
    if off or not any(given.values()):
        return None
    try:
        name = TRACES_ENDPOINT if given[TRACES_ENDPOINT] else ENDPOINT
        check_url(name, given[name])
        url = given[name] if name == TRACES_ENDPOINT else f"{given[name].rstrip('/')}/v1/traces"
        return _open(url, environment)
    except ConfigError as error:
        _log.warning("no traces are sent, though the environment asks for them: %s", error)
        return None


def _with_path(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(path="/v1/traces").geturl() if parts.path in ("", "/") else url


def _open(url: str, environment: Mapping[str, str]) -> Traces:
    for name in PROTOCOLS:
        if (protocol := environment.get(name, "").strip()) not in ("", "http/protobuf"):
            raise ConfigError(name, f"must be http/protobuf, not {protocol}: traces are sent over HTTP alone")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError(FLAG, "needs OpenTelemetry: pip install 'orcaserve[otlp]'") from error
    for quiet in ("opentelemetry.exporter", "opentelemetry.sdk"):  # what they say of a lost collector, we say once
        logging.getLogger(quiet).setLevel(logging.CRITICAL)
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")  # there may be a password
    try:
        return Traces(OTLPSpanExporter(endpoint=url), shown, environment)
    except (ValueError, OSError) as error:  # of a variable that cannot be read, of certificates
        raise ConfigError(FLAG, f"traces cannot be sent: {error}") from error


@dataclass(frozen=True, slots=True)
class _Part:
    """A choice, without its tokens and texts."""

    number: int
    life: Life
    n_output: int


@dataclass(frozen=True, slots=True)
class _Ended:
    """A request that is over. carrier: the headers by which its client's trace goes on."""

    name: str
    carrier: Mapping[str, str]
    attributes: Mapping[str, Any]
    received: float
    ended: float
    failed: bool
    parts: list[_Part]


class Traces:
    """Takes requests that have ended, from the event loop; sends their spans from a thread.

    exporter: where the spans go. shown: how that is called in the log.
    """

    def __init__(self, exporter: SpanExporter, shown: str, environment: Mapping[str, str]) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        named = environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        )
        about: dict[str, Any] = {"service.version": __version__} | ({} if named else {"service.name": "orcaserve"})
        self._spans: list[ReadableSpan] = []  # of the message that is being made
        provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)  # sampler: OTEL_TRACES_*
        provider.add_span_processor(_collector(self._spans))
        self._tracer = provider.get_tracer("orcaserve", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._exporter = exporter
        self._shown = shown
        self._waiting: queue.Queue[_Ended | None] = queue.Queue(MAX_WAITING)
        self._closing = threading.Event()
        self._lost = False
        self.n_dropped = 0  # requests whose spans never reached a collector
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def take(self, exchange: Exchange, model: str | None, ended: float) -> None:
        """A request is over. Never blocks. model: the served one, once it is loaded."""
        account = exchange.account
        if account.quiet or not account.route:
            return
        try:
            self._waiting.put_nowait(_ended(exchange, account, model, ended))
        except queue.Full:
            self._drop(1)

    def close(self) -> None:
        """Send what is left, for two seconds at most. Idempotent. From any thread but the event loop's."""
        self._closing.set()
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(LAST_WORDS)
        self._exporter.shutdown()
        self._thread.join(LAST_BREATH)

    def _run(self) -> None:
        over = False
        while not over:
            together = [self._waiting.get()]
            self._closing.wait(LINGER)
            with contextlib.suppress(queue.Empty):
                while len(together) < MAX_TOGETHER:
                    together.append(self._waiting.get_nowait())
            over = None in together or (self._closing.is_set() and self._waiting.empty())
            self._send([ended for ended in together if ended is not None])

    def _send(self, together: list[_Ended]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            for ended in together:
                self._make(ended)
            good = not self._spans or self._exporter.export(list(self._spans)) is SpanExportResult.SUCCESS
        except Exception:
            _log.debug("spans could not be made or sent", exc_info=True)
            good = False
        finally:
            self._spans.clear()
        if not good:
            self._drop(len(together))
        elif self._lost and together:
            self._lost = False
            _log.info("traces are sent to %s again; those of %d requests were lost", self._shown, self.n_dropped)

    def _drop(self, n: int) -> None:
        self.n_dropped += n
        if not self._lost and not self._closing.is_set():
            self._lost = True
            _log.warning("traces cannot be sent to %s now: they are dropped until they can", self._shown)

    def _make(self, ended: _Ended) -> None:
        """The spans of one request, which the collector of spans is told of as they end."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        offset = time.time() - time.monotonic()  # from our times to the calendar's
        context = self._propagator.extract(ended.carrier)
        begin = _nanoseconds(ended.received, offset)
        span = self._tracer.start_span(ended.name, context, SpanKind.SERVER, dict(ended.attributes), start_time=begin)
        if span.is_recording():
            below = set_span_in_context(span, context)
            for part in ended.parts[:MAX_CHOICES]:
                self._make_parts(part, below, offset)
            if ended.failed:
                span.set_status(Status(StatusCode.ERROR))
        span.end(_nanoseconds(ended.ended, offset))

    def _make_parts(self, part: _Part, context: Context, offset: float) -> None:
        life = part.life
        left = life.ended if life.ended is not None else life.submitted  # where what was under way was broken off
        begun = life.begun if life.begun is not None else left
        first = life.first_token or left
        attributes = {"orcaserve.request.number": part.number}
        stages: list[tuple[str, float, float, dict[str, int]]] = [("queue", life.arrival, begun, {})]
        if life.begun is not None:
            stages.append(("initiation", begun, first, {"orcaserve.cached_tokens": life.n_cached}))
        if life.first_token:
            stages.append(("increments", first, life.last_token, {"orcaserve.output_tokens": part.n_output}))
        for name, begin, end, told in stages:
            span = self._tracer.start_span(
                name, context, attributes={**attributes, **told}, start_time=_nanoseconds(begin, offset)
            )
            span.end(_nanoseconds(max(begin, end), offset))


def _nanoseconds(at: float, offset: float) -> int:
    return int((at + offset) * 1e9)


def _collector(spans: list[ReadableSpan]) -> Any:
    from opentelemetry.sdk.trace import SpanProcessor

    class Collector(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            if span.context is not None and span.context.trace_flags.sampled:
                spans.append(span)

    return Collector()


def _ended(exchange: Exchange, account: Account, model: str | None, ended: float) -> _Ended:
    """What spans need to know, for the request itself may be large."""
    attributes: dict[str, Any] = {
        "http.request.method": exchange.method,
        "http.route": account.route,
        "url.scheme": str(exchange.scope.get("scheme", "http")),
        "orcaserve.request.id": exchange.id,
    }
    if exchange.client_id is not None:
        attributes["orcaserve.request.client_id"] = exchange.client_id
    if (server := exchange.scope.get("server")) is not None:
        attributes["server.address"] = str(server[0])
        if server[1] is not None:
            attributes["server.port"] = int(server[1])
    if account.status:
        attributes["http.response.status_code"] = account.status
    if account.code:
        attributes["error.type"] = account.code
    name = f"{exchange.method} {account.route}"
    if account.choices:
        operation = "chat" if account.route == "/v1/chat/completions" else "text_completion"
        name = f"{operation} {model}"
        attributes |= _generation(exchange.id, account, operation, model or "", account.choices[0])
    carrier = {
        header: value
        for header in ("traceparent", "tracestate")
        if (value := exchange.header(header.encode())) is not None
    }
    parts = [_Part(choice.request.id, choice.life, choice.n_output) for choice in account.choices[:MAX_CHOICES]]
    failed = account.status >= 500 or "error" in account.finish_reasons
    return _Ended(name, carrier, attributes, account.received, ended, failed, parts)


def _generation(answer_id: str, account: Account, operation: str, model: str, first: Outcome) -> dict[str, Any]:
    """By the semantic conventions for generative AI; the gen_ai.latency ones are those that vLLM's users know."""
    params, life = first.request.params, first.life
    told: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.response.id": answer_id,
        "gen_ai.response.model": model,
        "gen_ai.response.finish_reasons": account.finish_reasons[:MAX_CHOICES],
        "gen_ai.usage.input_tokens": account.n_prompt,
        "gen_ai.usage.output_tokens": account.n_output,
        "gen_ai.usage.cache_read.input_tokens": life.n_cached,
    }
    if params.top_k:
        told["gen_ai.request.top_k"] = params.top_k
    if len(account.choices) > 1:
        told["gen_ai.request.choice.count"] = len(account.choices)
    if (queue_time := account.queue) is not None:
        told["gen_ai.latency.time_in_queue"] = queue_time
    if (first_token := account.first_token) is not None:
        told["gen_ai.latency.time_to_first_token"] = first_token
    if life.ended is not None:
        told["gen_ai.latency.e2e"] = life.ended - life.arrival
    return told
