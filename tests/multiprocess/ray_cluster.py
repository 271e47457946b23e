"""A cluster of Ray's with several nodes on this machine, in a process of its own: Ray's own cluster utility.

As a script it is that process: it takes commands from standard input, one a line in JSON, and prints an answer to each.
Nothing of it listens beyond loopback, and when it ends, however it does, its nodes end.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

OBJECTS = 80 * 2**20  # bytes of a node's object store: nothing is put there
TRIES = 3  # a head node has 30 s to come up, whatever the machine has to do beside it
PATIENCE = (  # s that Ray Serve has with its own processes, which may start slowly on a busy machine
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S",
    "RAY_SERVE_RECORD_AUTOSCALING_STATS_TIMEOUT_S",
)


class RayCluster:
    """A head without CPUs, and the nodes that are added."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="r")  # a short name: sockets are in it
        os.mkdir(f"{self.folder}/ray")
        settings = {
            "RAY_TMPDIR": self.folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback only
            "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
            **dict.fromkeys(PATIENCE, "120"),
            "PYTHONWARNINGS": "ignore",  # of Ray's own
        }
        environment = {**os.environ, **settings}
        for tries_left in reversed(range(TRIES)):
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            )  # fmt: skip
            try:
                self.address: str = self._read()
                return
            except BaseException:
                self._end()
                if not tries_left:
                    shutil.rmtree(self.folder, ignore_errors=True)
                    raise

    def call(self, command: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        print(json.dumps([command, arguments]), file=self._process.stdin, flush=True)
        return self._read()

    def processes(self, title: str) -> list[int]:
        """Process ids of its actors whose titles begin so."""
        raylets = [pid for pid in children(self._process.pid, "") if "raylet/raylet" in _command(pid)]
        return [actor for raylet in raylets for actor in children(raylet, title)]

    @property
    def actors(self) -> list[int]:
        """Process ids of those that run workers."""
        return self.processes("ray::WorkerHost")

    @property
    def workers(self) -> list[int]:
        return [worker for actor in self.actors for worker in children(actor, "orcaserve: worker")]

    def close(self) -> None:
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the cluster has ended"
        return json.loads(line)


_NEW_MOUNTS, _OWN_FILES = 0x20000, 0x200  # CLONE_NEWNS, CLONE_FS
_BIND, _PRIVATE = 0x1000, 0x44000  # MS_BIND; MS_REC and MS_PRIVATE


def _system(call: str, *arguments: Any) -> None:
    """Of the calling thread, whose children inherit what it changes. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, call)(*arguments):
        raise OSError(ctypes.get_errno(), call)


class _Commands:
    def __init__(self) -> None:
        import ray
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "node_ip_address": "127.0.0.1"}
        self._cluster = Cluster(initialize_head=True, head_node_args={**head, "object_store_memory": OBJECTS})
        self.address: str = self._cluster.address
        self._nodes: dict[str, Any] = {}
        ray.init(address=self.address, log_to_driver=False, logging_level="error")

    def add(self, cpus: int) -> str:
        """Returns the beginning of its id."""
        node = self._cluster.add_node(num_cpus=cpus, object_store_memory=OBJECTS)
        self._nodes[node.node_id[:8]] = node
        return str(node.node_id[:8])

    def add_with(self, cpus: int, path: str, other: str) -> str | None:
        """A node which sees `other` when it looks at `path`, or None: there is no right to make one."""
        with contextlib.ExitStack() as ours:
            before = ours.enter_context(open("/proc/thread-self/ns/mnt"))
            try:
                _system("unshare", _NEW_MOUNTS)
                ours.callback(_system, "setns", before.fileno(), _NEW_MOUNTS)
                ours.callback(_system, "unshare", _OWN_FILES)  # first: threads made meanwhile share this one's
                _system("mount", b"none", b"/", None, _PRIVATE, None)
                _system("mount", other.encode(), path.encode(), None, _BIND, None)
            except PermissionError:
                return None
            return self.add(cpus)

    def remove(self, name: str) -> None:
        """As if the machine were switched off."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def serve(self, args: dict[str, Any]) -> str:
        """Our application of Ray Serve. Returns its address."""
        from ray import serve

        from orcaserve.ray.app import build_app

        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        serve.run(build_app(args))
        return f"http://127.0.0.1:{port}"

    def replicas(self) -> int:
        """How many run."""
        from ray import serve

        states = serve.status().applications["default"].deployments["orcaserve"].replica_states
        return int(states.get("RUNNING", 0))

    def end_serve(self) -> None:
        from ray import serve

        serve.shutdown()

    def left(self) -> list[str]:
        """Actors that live and placement groups that there are, of anybody."""
        from ray._private.state import actors
        from ray.util import placement_group_table

        living = [actor["ActorClassName"] for actor in actors().values() if actor["State"] != "DEAD"]
        groups = [group["state"] for group in placement_group_table().values() if group["state"] != "REMOVED"]
        return living + groups

    def close(self) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever Ray prints must not mix with them
    commands = _Commands()
    print(json.dumps(commands.address), file=answers, flush=True)
    for line in sys.stdin:
        command, arguments = json.loads(line)
        print(json.dumps(getattr(commands, command)(**arguments)), file=answers, flush=True)
    commands.close()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def children(parent: int, title: str) -> list[int]:
    """Process ids of a process's children whose title begins so."""
    found = []
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        found += [int(pid) for pid in path.read_text().split() if _command(int(pid)).startswith(title)]
    return found


if __name__ == "__main__":
    main()
