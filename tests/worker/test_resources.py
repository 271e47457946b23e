"""Cores and memory that cgroups of either version leave to this process, over trees of files like the kernel's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orcaserve.worker.resources import available_cores, available_memory

GIB = 2**30


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": f"MemFree: 1 kB\nMemAvailable: {8 * GIB // 1024} kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_no_cgroups(tmp_path: Path) -> None:
    tree(tmp_path, {})
    assert (available_cores(tmp_path), available_memory(tmp_path)) == (8, 8 * GIB)


def test_version_2_takes_the_tightest_of_all_levels(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
            "sys/fs/cgroup/a/cpu.max": "350000 100000\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/a/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/a/memory.stat": f"anon 1\ninactive_file {GIB}\n",
        },
    )
    assert (available_cores(tmp_path), available_memory(tmp_path)) == (3, 2 * GIB)


def test_version_1(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/pod\n4:cpu,cpuacct:/pod\n3:name=systemd:/\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/pod/memory.limit_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/pod/memory.usage_in_bytes": f"{GIB // 2}\n",
            "sys/fs/cgroup/memory/pod/memory.stat": "total_inactive_file 0\n",
        },
    )
    assert (available_cores(tmp_path), available_memory(tmp_path)) == (1, GIB // 2)


def test_a_container_sees_its_own_group_as_the_root_of_the_mount(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:cpu:/docker/0123\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert available_cores(tmp_path) == 2


def test_files_that_make_no_sense_are_no_limit(tmp_path: Path) -> None:
    files = {"cpu.max": "garbage", "memory.max": "garbage"}
    tree(tmp_path, {"proc/self/cgroup": "0::/\n", **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}})
    assert (available_cores(tmp_path), available_memory(tmp_path)) == (8, 8 * GIB)


def test_this_machine() -> None:
    assert available_cores() >= 1
    assert available_memory() > 0
