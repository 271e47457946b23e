"""What scripts/clients is made of, imported by name. Clients are installed and run by it alone, not by these tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "multiprocess"))
