"""What scripts/clients is made of, imported by name. What it runs is not run here: clients are installed by it alone."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "multiprocess"))
