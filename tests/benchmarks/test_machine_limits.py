"""The probe of the machine's limits builds, runs, and says something plausible."""

from __future__ import annotations

import os
import shutil

import pytest
from machine_limits import measure


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="needs a C++ compiler")
def test_the_probe_runs_on_one_thread() -> None:
    limits = measure([1_000_000, 50_000_000], threads=1)
    assert all(0.1 < bandwidth < 10_000 for bandwidth in limits.reads.values())
    assert limits.read(2_000_000) == limits.reads[1_000_000]
    assert set(limits.operations) == {"float32", "bfloat16", "int8"}
    assert all(value is None or 1 < value < 100_000 for value in limits.operations.values())
