"""A collector of OpenTelemetry traces as tests need one: a plain HTTP server that decodes what it is sent."""

from __future__ import annotations

import gzip
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """One span in plain values."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start: float
    end: float
    status: int
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Collector:
    """status: what it answers. hold: while set, answers wait for `let_go`."""

    def __init__(self, port: int = 0) -> None:
        self.spans: list[Span] = []
        self.paths: list[str] = []
        self.status = 200
        self.let_go = threading.Event()
        self.let_go.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.let_go.wait(20)
                if collector.status == 200:
                    collector.spans += _read(body)
                    collector.paths.append(self.path)
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: Any) -> None:
                """A client that has left, which is what some tests are about."""

        self._server = Server(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def wait_for(self, n: int, seconds: float = 20.0) -> list[Span]:
        """Once there are so many spans: all."""
        until = time.monotonic() + seconds
        while len(self.spans) < n:
            assert time.monotonic() < until, f"{len(self.spans)} spans of {n}: {[s.name for s in self.spans]}"
            time.sleep(0.02)
        return list(self.spans)

    def close(self) -> None:
        self.let_go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def _values(attributes: Any) -> dict[str, Any]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _read(body: bytes) -> list[Span]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        Span(
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.kind,
            span.start_time_unix_nano / 1e9,
            span.end_time_unix_nano / 1e9,
            span.status.code,
            _values(span.attributes),
            _values(each.resource.attributes),
        )
        for each in request.resource_spans
        for scope in each.scope_spans
        for span in scope.spans
    ]
