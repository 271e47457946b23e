"""The kernels outside Python: their own check program with sanitizers and on another architecture; forced sets.

The program is csrc/check; scripts/check-kernels builds and runs it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orcaserve import native

ROOT = Path(__file__).parents[2]
CANNOT_BUILD = 3  # exit code of scripts/check-kernels
X86_SETS = ("avx2", "avxvnni", "avx512", "avx512vnni", "amx")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", ["address", "thread", "aarch64"])
def test_the_kernels_pass_their_own_checks(way: str) -> None:
    result = subprocess.run(["scripts/check-kernels", way], cwd=ROOT, capture_output=True, text=True)
    if result.returncode == CANNOT_BUILD:
        pytest.skip(result.stderr.strip().splitlines()[-1])
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-8000:]
    assert result.stdout.splitlines()[-1].endswith(" checks, 0 failed")


def test_plain_is_there_on_every_machine() -> None:
    """It asks for nothing beyond the architecture, so no machine is without a set."""
    assert native.available_isas()[0] == "plain"


def test_forcing_a_set_that_the_machine_lacks_is_an_error_and_not_a_crash() -> None:
    lacking = [name for name in X86_SETS if name not in native.available_isas()]
    if not lacking:
        pytest.skip("this machine has every set")
    result = subprocess.run(
        [sys.executable, "-c", "from orcaserve import native"],
        env={**os.environ, native.ISA_VARIABLE: lacking[-1]},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 1
    message = result.stderr.splitlines()[-1]
    assert "ConfigError" in message
    assert "instruction set" in message
    assert f"available here: {', '.join(native.available_isas())}" in message
