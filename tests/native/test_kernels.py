"""The extension module: choice of instruction set, one OpenMP runtime, refusal of layouts that would read elsewhere."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from orcaserve import native


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture
def restore_isa() -> Iterator[None]:
    before = native.isa()
    yield
    native.set_isa(before)


def test_the_widest_available_set_is_chosen() -> None:
    result = run_python("from orcaserve import native; print(native.isa(), *native.available_isas())", ORCASERVE_ISA="")
    chosen, *available = result.stdout.split()
    assert chosen == available[-1]
    assert available[0] == "plain"


def test_the_environment_forces_a_set() -> None:
    result = run_python("from orcaserve import native; print(native.isa())", ORCASERVE_ISA="plain")
    assert result.stdout.strip() == "plain", result.stderr


@pytest.mark.parametrize("isa", native.available_isas())
def test_every_available_set_can_be_chosen(restore_isa: None, isa: str) -> None:
    native.set_isa(isa)
    assert native.isa() == isa


def test_a_set_of_another_name_is_an_error_that_names_the_variable() -> None:
    code = """
from orcaserve.core.errors import ConfigError
try:
    import orcaserve.native
except ConfigError as error:
    print(error.name, "|", error)
"""
    result = run_python(code, ORCASERVE_ISA="avx1024")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("ORCASERVE_ISA |")
    assert "plain" in result.stdout


def test_an_unknown_set_changes_nothing(restore_isa: None) -> None:
    before = native.isa()
    with pytest.raises(ValueError, match="unknown instruction set"):
        native.set_isa("mmx")
    assert native.isa() == before


@pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc")
def test_one_openmp_runtime_is_shared_with_torch() -> None:
    # Torch's many operators, the kernels, and numpy are loaded; mapped files that implement OpenMP are counted.
    code = """
import torch
from orcaserve.model.attention import NativeAttention
from orcaserve.model.kv_manager import KVManager
kv = KVManager(1, 1, 8, 64)
x = torch.ones(40, 1, 8)
NativeAttention()(x, x, x, 0, kv.lay_out([(0, 20), (1, 20)]), kv)
torch.ones(300, 300) @ torch.ones(300, 300)
files = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
names = ("libgomp", "libomp", "libiomp")
print(*(f for f in files if f.rsplit("/", 1)[-1].startswith(names)), sep="\\n")
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.split()) == 1, result.stdout


def plan(starts: list[int], contexts: list[int], table: list[list[int]], **sizes: int) -> native.AttentionPlan:
    shape = {"n_pages": 4, "n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "page_size": 4} | sizes
    arrays = (np.array(x, dtype=np.int32) for x in (starts, contexts, table))
    return native.AttentionPlan(*arrays, **shape, scale=1.0, bfloat16=False)


def test_a_sound_layout_is_taken() -> None:
    assert plan([0, 5, 6], [3, 0], [[0, 3], [1, -1]]).n_tokens == 6


@pytest.mark.parametrize(
    ("starts", "contexts", "table", "message"),
    [
        ([0], [], np.empty((0, 1)), "at least one request"),
        ([1, 5], [0], [[0, 1]], "begin with 0"),
        ([0, 0], [0], [[0, 1]], "starts must increase"),
        ([0, 5, 4], [0, 0], [[0, 1], [2, 3]], "starts must increase"),
        ([0, 1], [-1], [[0, 1]], "context"),
        ([0, 9], [0], [[0, 1]], "shorter than its tokens"),
        ([0, 1], [8], [[0, 1]], "shorter than its tokens"),
        ([0, 5], [0], [[0, -1]], "outside the region"),
        ([0, 5], [0], [[0, 4]], "outside the region"),
        ([0, 1, 2], [0], [[0, 1]], "disagree"),
        ([0, 1], [0], [[0, 1], [2, 3]], "disagree"),
    ],
)
def test_a_layout_that_reaches_outside_is_refused(
    starts: list[int], contexts: list[int], table: list[list[int]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        plan(starts, contexts, table)


@pytest.mark.parametrize("sizes", [{"n_heads": 3}, {"n_kv_heads": 0}, {"head_dim": 0}, {"page_size": 0}])
def test_impossible_sizes_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"n_heads|positive"):
        plan([0, 1], [0], [[0]], **sizes)


def test_arrays_of_another_type_are_refused() -> None:
    with pytest.raises(TypeError):
        native.AttentionPlan(
            np.array([0, 1], dtype=np.int64),
            np.array([0], dtype=np.int32),
            np.array([[0]], dtype=np.int32),
            n_pages=1,
            n_heads=1,
            n_kv_heads=1,
            head_dim=1,
            page_size=1,
            scale=1.0,
            bfloat16=False,
        )
