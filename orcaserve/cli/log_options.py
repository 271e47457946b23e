"""Flags about logs and traces."""

from __future__ import annotations

import argparse

from orcaserve.logs import FORMATS, LEVELS


def add_log_arguments(group: argparse._ArgumentGroup) -> None:
    """How a process and its children log."""
    group.add_argument("--log-level", choices=LEVELS, default="info", help="what is said at least (default: info)")
    group.add_argument(
        "--log-format",
        choices=FORMATS,
        default="text",
        help="json: an object a line, of all processes, with the ids of requests (default: text)",
    )


def add_watching_arguments(group: argparse._ArgumentGroup) -> None:
    """What is told of requests."""
    group.add_argument(
        "--log-requests",
        action="store_true",
        help="log a line for each request: ids, status, tokens, times; never texts, keys or addresses. Without it they "
        "come at the level debug",
    )
    group.add_argument(
        "--otlp-traces-endpoint",
        metavar="URL",
        help="send a trace of each request to this OpenTelemetry collector (OTLP over HTTP), such as "
        "http://127.0.0.1:4318; default: what OTEL_EXPORTER_OTLP_ENDPOINT says, else none. Needs orcaserve[otlp]",
    )
