"""Where profiles of this machine lie when nobody says otherwise."""

from __future__ import annotations

from pathlib import Path

from orcaserve.checkpoint.locate import cache_dir


def default_profile(model_name: str) -> Path:
    """In the cache, a file for each model by its name."""
    return cache_dir() / "profiles" / f"{model_name.replace('/', '--')}.json"
