"""How many cores and how much memory this process may use: the machine's, less what affinity and cgroups keep back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def available_cores(root: Path = Path("/")) -> int:
    """Cores that this process may keep busy, at least 1: its CPU affinity, cut by the CPU quota of its cgroups."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _cgroups(root, "cpu"):
        quota = _cpu_quota(group)
        if quota is not None:
            cores = min(cores, int(quota))
    return max(cores, 1)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes this process could still take without swapping or being killed: the machine's, or its cgroups' rest."""
    available = _meminfo(root)
    for group in _cgroups(root, "memory"):
        rest = _memory_rest(group)
        if rest is not None:
            available = min(available, rest)
    return max(available, 0)


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Directories of this process's cgroup and of every one above it that may limit `controller` (version 1 and 2)."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounts = [f"sys/fs/cgroup/{controllers}", f"sys/fs/cgroup/{controller}"] if controllers else ["sys/fs/cgroup"]
        for mount in dict.fromkeys(mounts):
            group = Path(path.strip("/"))  # inside a container its own group may be the mount's root: try that as well
            for part in (group, *group.parents):
                if (root / mount / part).is_dir():
                    yield root / mount / part


def _cpu_quota(group: Path) -> float | None:
    """Cores that the cgroup allows, or None for no limit."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = (group / "cpu.cfs_quota_us").read_text(), (group / "cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if quota.strip() not in ("max", "-1") else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _memory_rest(group: Path) -> int | None:
    """Bytes that the cgroup still allows, or None for no limit. Its unused file cache counts as free."""
    try:
        second = (group / "memory.max").exists()
        limit = (group / ("memory.max" if second else "memory.limit_in_bytes")).read_text().strip()
        if limit == "max":
            return None
        used = int((group / ("memory.current" if second else "memory.usage_in_bytes")).read_text())
        key = "inactive_file" if second else "total_inactive_file"
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(limit) - used + int(stat.get(key, 0))
    except (OSError, ValueError):
        return None


def _meminfo(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")
