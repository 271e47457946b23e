"""Fixtures every folder of tests may use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's GGUF file, fetched into the cache once and checked by its hash."""
    from orcaserve.checkpoint.locate import locate_model

    return locate_model(None)
