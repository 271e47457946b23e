"""What a process of ours asks of the system."""

from __future__ import annotations

import subprocess
import sys

LOOK = """
import resource
from orcaserve.process import allow_many_files
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
allow_many_files()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
"""


def test_it_may_hold_as_many_files_as_the_system_lets_it() -> None:
    subprocess.run([sys.executable, "-c", LOOK], check=True, timeout=60)
