"""One thread of another process, held still while the others run: what a device that hangs looks like from outside."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from pathlib import Path

_SEIZE, _INTERRUPT = 0x4206, 0x4207  # of ptrace
_WALL = 0x40000000  # of waitpid: threads too


class FrozenThread:
    """Holds it from here on, until its process ends or this one does. Raises OSError where ptrace is not allowed.

    The kernel stops it wherever it is: in our kernels, in the interpreter (perhaps with its lock), asleep.
    """

    def __init__(self, pid: int, tid: int) -> None:
        assert Path(f"/proc/{pid}/task/{tid}").exists()
        self.tid = tid
        self._error: OSError | None = None
        held = threading.Event()
        threading.Thread(target=self._hold, args=(held,), daemon=True).start()
        held.wait()
        if self._error is not None:
            raise self._error

    def _hold(self, held: threading.Event) -> None:
        """All on one thread: only the one that has seized it may ask for more. Its end has to be waited for as well, or
        its process could not be reaped by its own parent."""
        try:
            _ptrace(_SEIZE, self.tid)
            _ptrace(_INTERRUPT, self.tid)
            os.waitpid(self.tid, _WALL)
        except OSError as error:
            self._error = error
            return
        finally:
            held.set()
        with contextlib.suppress(ChildProcessError):
            while os.WIFSTOPPED(os.waitpid(self.tid, _WALL)[1]):
                pass


def threads_of(pid: int, name: str | None = None) -> list[int]:
    """Ids of its threads, of that name if one is given (the kernel keeps 15 bytes of it), the oldest first."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if name is None or (task / "comm").read_text().rstrip("\n") == name[:15]:
                found.append(int(task.name))
    return sorted(found)


def thread_of(pid: int, name: str) -> int:
    """The oldest of that name: those that it has started itself have its name too."""
    return threads_of(pid, name)[0]


def seconds_of(pid: int, tid: int) -> float:
    """Processor time that it has used."""
    fields = Path(f"/proc/{pid}/task/{tid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _ptrace(request: int, tid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    if libc.ptrace(request, tid, None, None) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
