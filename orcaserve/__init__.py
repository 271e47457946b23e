"""OrcaServe: an LLM server with iteration-level scheduling and selective batching.

    from orcaserve import LLM, SamplingParams

The names load on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orcaserve.version import __version__

if TYPE_CHECKING:
    from orcaserve.core import Grammar, SamplingParams
    from orcaserve.llm import LLM, Completion

__all__ = ["LLM", "Completion", "Grammar", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name in ("Grammar", "SamplingParams"):
        from orcaserve import core

        return getattr(core, name)
    if name in ("LLM", "Completion"):
        from orcaserve import llm

        return getattr(llm, name)
    raise AttributeError(f"module 'orcaserve' has no attribute {name!r}")
