"""Tests of real GPUs; skipped where there are too few. Helpers are imported by name, by spawned processes as well."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "multiprocess")]
