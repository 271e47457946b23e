"""A disk of a few pages, which a test can fill: a tmpfs in a mount namespace of the process that is put there."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

_PAGES = "size=256k,nr_inodes=64"
# Other folders for temporary files can be read only, so that nothing evades to them.
_MOUNT = """
for other in /tmp /var/tmp; do mount --bind $other $other && mount -o remount,bind,ro $other || exit 1; done
mount -t tmpfs -o $0 tiny "$1" && cd "$1" && shift && exec "$@"
"""


class TinyDisk:
    """At `folder`, for the process that is started with `inside` before its command, and for its children.

    Raises OSError where mount namespaces are not allowed.
    """

    def __init__(self, folder: Path) -> None:
        if shutil.which("unshare") is None:
            raise OSError("the command unshare (package util-linux) is missing")
        self._folder = folder
        own = () if os.getuid() == 0 else ("--map-root-user",)
        self.inside = ("unshare", *own, "--mount", "sh", "-c", _MOUNT, _PAGES, str(folder))
        done = subprocess.run([*self.inside, "true"], capture_output=True, text=True)
        if done.returncode:
            raise OSError(done.stderr.strip())
        self._seen = folder

    def of(self, pid: int) -> None:
        """The process that is there: through it the disk is looked at from here."""
        self._seen = Path(f"/proc/{pid}/root{self._folder}")

    def fill(self, leave_names: bool = False) -> None:
        """Until neither a byte nor, unless told otherwise, a name finds room."""
        with contextlib.suppress(OSError), open(self._seen / "full", "ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        with contextlib.suppress(OSError):
            for i in range(0 if leave_names else 10_000):
                (self._seen / f"full{i}").touch()

    def free(self) -> None:
        for path in self._seen.glob("full*"):
            path.unlink()

    @property
    def names(self) -> list[str]:
        """What is there, but what fills it."""
        return [path.name for path in self._seen.iterdir() if not path.name.startswith("full")]
