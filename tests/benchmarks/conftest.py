"""The benchmarks' own arithmetic; their scripts lie in benchmarks/ and import one another by name."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
