"""Joining a cluster of Ray's, or starting one."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orcaserve.config import RayConfig, split_address
from orcaserve.control_plane.channel import own_address
from orcaserve.core import EngineError
from orcaserve.ray.room import NodeRoom

PROBE_TIMEOUT = 2.0  # s for a cluster to take a connection: Ray itself tries for minutes
_PROBE_PERIOD = 0.5  # s
_OUTSIDE = "192.0.2.1"  # of no machine: any address that is not here shows which of ours leads away from it
# Ray takes a loopback address for "the address by which others reach this machine", but where it believes that there
# are no clusters of several machines: so says this variable, when ray is first imported.
_NO_OTHER_MACHINES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"

_log = logging.getLogger(__name__)


def join(config: RayConfig, n_cpus: int) -> bool:
    """Make this process a driver of the cluster. False if it was one before, and is to stay one.

    n_cpus: least that a cluster of our own is to have. Raises EngineError within `patience` and some seconds.
    """
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        return False
    where = _find(config.address)
    if where is not None:
        _wait_for(where, config.patience)
    else:
        os.environ.setdefault(_NO_OTHER_MACHINES, "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray  # late: after its settings

    options: dict[str, Any] = {}
    if where is None:
        _log.info("no cluster of Ray's is running: starting one on this machine")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        options = {"num_cpus": max(cores, n_cpus), "include_dashboard": False}
    try:
        with _own_signals():
            ray.init(
                address="local" if where is None else config.address or "auto",
                log_to_driver=False,
                logging_level=logging.WARNING,
                **options,
            )
    except Exception as error:  # of any kind: a node that does not start is a bare Exception
        ray.shutdown()
        raise EngineError(f"Ray's cluster at {where or 'this machine'}: {' '.join(str(error).split())}") from error
    return True


def address_of_this_node() -> str:
    """At which other nodes reach this machine. Joined."""
    import ray

    return str(ray.util.get_node_ip_address())


def address() -> str:
    """Of the cluster. Joined."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


def nodes() -> list[NodeRoom]:
    """What the nodes that live have. Joined."""
    import ray
    from ray._private.state import available_resources_per_node  # the public API has only the sum over all nodes

    free = available_resources_per_node()
    return [
        NodeRoom(
            name=node_name(node["NodeID"], node["NodeManagerAddress"]),
            cpus=node["Resources"].get("CPU", 0),
            free_cpus=free.get(node["NodeID"], {}).get("CPU", 0),
            gpus=node["Resources"].get("GPU", 0),
            free_gpus=free.get(node["NodeID"], {}).get("GPU", 0),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def node_name(node_id: str, address: str) -> str:
    """For people: Ray's own names are 56 digits long."""
    return f"Ray node {node_id[:8]} ({address})"


def _find(given: str | None) -> str | None:
    """HOST:PORT of the cluster to join, or None: start one. Looks where Ray looks. Raises EngineError."""
    if given not in (None, "auto"):
        return None if given == "local" else given
    named = os.environ.get("RAY_ADDRESS", "")
    if named not in ("", "auto"):
        return None if named == "local" else named
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    with contextlib.suppress(OSError):
        return Path(folder, "ray", "ray_current_cluster").read_text().strip()
    if given == "auto":
        raise EngineError("--ray-address: no cluster of Ray's runs on this machine: `ray start`, or give HOST:PORT")
    return None


def _wait_for(where: str, patience: float) -> None:
    """Until somebody answers there. Raises EngineError."""
    host, port = split_address("RAY_ADDRESS", where)
    deadline = time.monotonic() + patience
    while not _answers(host, port):
        if time.monotonic() > deadline:
            raise EngineError(f"--ray-address: no cluster of Ray's answers at {where}")
        time.sleep(_PROBE_PERIOD)


def _answers(host: str, port: int) -> bool:
    if host in ("localhost", "127.0.0.1", "::1"):
        with contextlib.suppress(OSError):
            if _connects(own_address(_OUTSIDE, port), port):
                return True
        if _connects(host, port):
            os.environ.setdefault(_NO_OTHER_MACHINES, "0")
            return True
        return False
    return _connects(host, port)


def _connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), PROBE_TIMEOUT).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, ours)
