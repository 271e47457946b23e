"""Facts that tell one machine from another, as far as speed goes."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def this_machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str | int]:
    """processor: its name and, where the name is a family's, model number; cores: those this process may use."""
    fields: dict[str, str] = {}
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            name, colon, value = line.partition(":")
            if colon:
                fields.setdefault(name.strip(), value.strip())
    processor = fields.get("model name") or platform.processor() or platform.machine()
    if {"cpu family", "model", "stepping"} <= fields.keys():
        processor += f" (family {fields['cpu family']}, model {fields['model']}, stepping {fields['stepping']})"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"processor": processor, "cores": cores}
