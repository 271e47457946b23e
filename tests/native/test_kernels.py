"""The extension module: choice of the instruction set."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

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
