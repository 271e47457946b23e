"""Batch: what is known of one, in the API's words and on the disk."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

MAX_METADATA, MAX_KEY, MAX_METADATA_VALUE = 16, 64, 512  # pairs; characters
MAX_WINDOW = 30 * 86400  # s
_WINDOW = re.compile(r"([1-9][0-9]{0,6})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Status(Enum):
    VALIDATING = "validating"  # the input is read
    FAILED = "failed"  # the input is wrong; nothing was run
    IN_PROGRESS = "in_progress"  # it runs, or waits for earlier ones
    FINALIZING = "finalizing"  # its results become files
    COMPLETED = "completed"
    EXPIRED = "expired"  # its window was over first
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        return self in (Status.FAILED, Status.COMPLETED, Status.EXPIRED, Status.CANCELLED)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as of now. Times are whole seconds since 1970.

    output_file_id, error_file_id: given at the start; said once these files are there (`has_output`, `has_errors`).
    expired: its window was over before all lines were run. times: when it came to each status.
    errors: of lines of its input, or why it stands still.
    """

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    output_file_id: str
    error_file_id: str
    metadata: Mapping[str, str] | None = None
    output_seconds: int | None = None
    status: Status = Status.VALIDATING
    times: Mapping[str, int] = field(default_factory=dict)
    errors: tuple[Mapping[str, Any], ...] = ()
    total: int = 0
    completed: int = 0
    failed: int = 0
    expired: bool = False
    has_output: bool = False
    has_errors: bool = False

    def came_to(self, status: Status, now: float, **changes: Any) -> Batch:
        return replace(self, status=status, times={**self.times, status.value: int(now)}, **changes)

    @property
    def said(self) -> dict[str, Any]:
        """The batch object of the API."""
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": list(self.errors)} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status.value,
            "output_file_id": self.output_file_id if self.has_output else None,
            "error_file_id": self.error_file_id if self.has_errors else None,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{f"{s.value}_at": self.times.get(s.value) for s in Status if s is not Status.VALIDATING},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": self.metadata,
        }

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "status": self.status.value}

    @classmethod
    def from_file(cls, path: Path) -> Batch:
        """Raises ValueError, TypeError or KeyError for what to_json has not made."""
        value = json.loads(path.read_bytes())
        return cls(**{**value, "status": Status(value["status"]), "errors": tuple(value["errors"])})


def window_seconds(text: str) -> int | None:
    """`24h`, `90m`, `7d` -> seconds; None if it is no such time, or too long."""
    match = _WINDOW.fullmatch(text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    return seconds if 0 < seconds <= MAX_WINDOW else None
