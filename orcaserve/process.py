"""How a process of ours is started and called, and that it ends with its parent.

Standard library and setproctitle only.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import site
import sys
from pathlib import Path

import setproctitle

SWITCH_INTERVAL = 0.0005  # s; a thread that wants the interpreter waits so long, not Python's 5 ms
DUMP_SIGNAL = signal.SIGUSR1
_PR_SET_PDEATHSIG = 1


def child_environment() -> dict[str, str]:
    """This process's environment, in which a child finds the same orcaserve, wherever this one was started from."""
    # None of our processes goes on as a fork; where one starts another (Ray's do), gRPC would say that it is not ready.
    environment = {"GRPC_ENABLE_FORK_SUPPORT": "0", **os.environ}
    root = str(Path(__file__).resolve().parents[1])
    if root in site.getsitepackages():
        return environment
    inherited = os.environ.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": f"{root}{os.pathsep}{inherited}" if inherited else root}


def allow_many_files() -> None:
    """Have this process hold as many connections as the system lets it: the usual first limit is 1,024 files."""
    try:
        import resource
    except ImportError:
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def name_process(role: str) -> None:
    """Show this process as `orcaserve: <role>` in ps."""
    setproctitle.setproctitle(f"orcaserve: {role}")


def name_thread(name: str) -> None:
    """Show the calling thread under this name in top -H and debuggers (the kernel keeps 15 bytes)."""
    setproctitle.setthreadtitle(name)


def die_with_parent(parent: int, signum: int) -> bool:
    """Have the kernel send `signum` to this process when its parent ends. False if `parent` has ended already.

    Call it on the main thread: the kernel forgets the wish with the thread that made it. It also takes the end of the
    THREAD that started this process for the end of the parent. Elsewhere than on Linux only the answer is given.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)
    return os.getppid() == parent


def dump_stacks_on_signal() -> None:
    """From now on DUMP_SIGNAL has this process write to standard error what each of its threads does. That works while
    one of them holds the interpreter for good."""
    faulthandler.register(DUMP_SIGNAL, all_threads=True)


def descendants(pid: int) -> list[int]:
    """Processes of ours below this one, as far as /proc tells: those that take DUMP_SIGNAL."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = [int(child) for child in (task / "children").read_text().split()]
        except OSError:  # it has ended meanwhile
            continue
        for child in children:
            try:
                title = Path(f"/proc/{child}/cmdline").read_bytes()
            except OSError:
                continue
            if title.startswith(b"orcaserve: worker"):
                found += [child, *descendants(child)]
    return found
