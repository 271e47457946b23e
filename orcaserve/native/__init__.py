"""The CPU kernels: what the machine can run, and which set of instructions is in use.

The kernels are compiled once per instruction set; the widest that the machine has is taken. ORCASERVE_ISA in the
environment forces one of `available_isas()`; anything else there raises ConfigError on import.
"""

from __future__ import annotations

import os

from orcaserve.core.errors import ConfigError

try:
    from orcaserve.native import _kernels
except ImportError as error:
    raise ImportError(
        f"the CPU kernels are not built, or for another Python ({error}); run `pip install -e .`"
    ) from error

ISA_VARIABLE = "ORCASERVE_ISA"

Team = _kernels.Team


def available_isas() -> list[str]:
    """Instruction sets that this build has kernels for and this machine can run, narrowest first."""
    return _kernels.available_isas()


def isa() -> str:
    """The instruction set in use."""
    return _kernels.isa()


def set_isa(name: str) -> None:
    """Use another of `available_isas()` from the next call on; ValueError if the machine or the build lacks it."""
    _kernels.set_isa(name)


def _apply_environment() -> None:
    forced = os.environ.get(ISA_VARIABLE)
    if not forced:
        return
    try:
        set_isa(forced)
    except ValueError as error:
        raise ConfigError(ISA_VARIABLE, f"{error}; available here: {', '.join(available_isas())}") from error


_apply_environment()

__all__ = ["ISA_VARIABLE", "Team", "available_isas", "isa", "set_isa"]
