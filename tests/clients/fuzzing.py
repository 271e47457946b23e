"""Schemathesis over the server's own description of its API."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from bench import Bench
from outcome import Step
from spoken import PROGRAMS

N_EXAMPLES = 2000
PER_OPERATION = 150
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "unsupported_method", "allow_header_conformance",
)  # fmt: skip


def schemathesis(bench: Bench) -> list[Step]:
    finished = bench.call(
        "schemathesis", "run", f"{bench.base}/openapi.json", "--max-examples", str(PER_OPERATION),
        "--checks", ",".join(CHECKS), "--continue-on-failure", "--request-timeout", "60", "--seed", "1",
        "--generation-database", "none", "--report", "ndjson", "--report-ndjson-path", "events.ndjson",
        variables={"SCHEMATHESIS_HOOKS": str(PROGRAMS / "schemathesis_hooks.py"), "MODEL": bench.model}, seconds=3000,
    )  # fmt: skip
    statuses = _statuses(bench.work / "events.ndjson")
    n = sum(statuses.values())
    shown = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
    enough = None if n >= N_EXAMPLES else f"{n} examples, expected {N_EXAMPLES}"
    return [Step(f"{n} examples ({shown}): no 5xx, all statuses documented", finished.problem or enough)]


def _statuses(events: Path) -> Counter[int]:
    """How often each status was answered."""
    found: Counter[int] = Counter()
    if events.exists():
        for line in events.read_text().splitlines():
            found.update(_walk(json.loads(line)))
    return found


def _walk(value: Any) -> list[int]:
    if isinstance(value, dict):
        own = [value["status_code"]] if isinstance(value.get("status_code"), int) else []
        return own + [status for part in value.values() for status in _walk(part)]
    if isinstance(value, list):
        return [status for part in value for status in _walk(part)]
    return []
