"""Placement: where Ray puts an engine's workers, and the actors that run them there."""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import asdict
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orcaserve.config import EngineConfig
from orcaserve.control_plane import worker_codec as codec
from orcaserve.control_plane import worker_pb2 as wire
from orcaserve.core import ConfigError, EngineError, ModelError, OrcaServeError
from orcaserve.node.agent import NodeSettings
from orcaserve.ray import cluster
from orcaserve.ray.actor import WorkerHost
from orcaserve.ray.room import Need, cpus_each, lack

STRATEGY = "PACK"  # on as few nodes as there is room on: shards of a stage sum twice per layer
JOIN_TIMEOUT = 60.0  # s for all actors to start and join
CLOSE_TIMEOUT = 5.0  # s; without its head node a cluster takes longer, and finds out by itself
SAY_AFTER = 1.0  # s of waiting for room that are worth a word
_CHECK_PERIOD = 0.1  # s

_log = logging.getLogger(__name__)


class Placement:
    """Room for all workers of an engine at once, and an actor for each.

        ours = cluster.join(config.ray, n_cpus)
        placement = Placement(config, ours)     # room is set aside
        placement.start("10.0.0.1:7000", secret)
        placement.check()                       # raises what an actor that has ended had against it
        placement.close()                       # actors and room are given back

    If this process ends without `close`, Ray gives them back: they belong to this driver.
    address: of this machine, for its nodes.
    """

    def __init__(self, config: EngineConfig, ours: bool) -> None:
        """In a cluster that was joined. ours: leave it with the room. Raises EngineError if there is none within
        `patience` seconds."""
        assert config.ray is not None
        self._config, self._ray = config, config.ray
        n_workers = config.parallel.n_workers
        self._ours = ours
        self._group: Any = None
        self._actors: list[Any] = []
        self._runs: dict[Any, str] = {}  # what `run` of an actor will give -> where it is
        self._deadline = 0.0
        try:
            self.address = cluster.address_of_this_node()
            cpus = [node.cpus for node in cluster.nodes()]
            n_all = n_workers * config.parallel.data_parallel_size
            self._need = Need(config.model.threads or cpus_each(cpus, n_all), int(config.model.device != "cpu"))
            self._reserve(n_workers)
        except BaseException:
            self.close()
            raise

    def start(self, join: str, secret: str) -> None:
        """Have a node for each worker join the engine there. Returns at once."""
        settings = NodeSettings(
            join=join,
            model=self._config.model.path,
            secret=secret,
            threads=self._need.cpus,
            join_timeout=JOIN_TIMEOUT,
            worker_timeout=self._config.parallel.worker_timeout,
        )
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        kind = ray.remote(num_cpus=self._need.cpus, num_gpus=self._need.gpus, max_restarts=0)(WorkerHost)
        for rank, (bundle, node_id) in enumerate(self._bundles(), 1):
            strategy = PlacementGroupSchedulingStrategy(self._group, bundle)
            actor = kind.options(scheduling_strategy=strategy).remote()
            name = cluster.node_name(node_id, addresses[node_id])
            own = {**asdict(settings), "rank": rank, "name": name.partition(" (")[0]}
            self._actors.append(actor)
            # The secret goes with a call, from process to process: what makes an actor is kept in Ray's tables.
            self._runs[actor.run.remote(json.dumps(own, default=str))] = name
        self._deadline = time.monotonic() + JOIN_TIMEOUT

    def check(self) -> None:
        """While nodes join. Raises what keeps one from it, and EngineError if it takes too long."""
        ended, _ = ray.wait(list(self._runs), num_returns=1, timeout=0)
        for run in ended:
            where = self._runs[run]
            try:
                said = ray.get(run)
            except RayError as error:
                raise EngineError(f"an actor on {where} could not start: {_first_line(error)}") from error
            raise _located(where, codec.decode_failure(wire.WorkerFailure.FromString(said)))
        if time.monotonic() > self._deadline:
            raise EngineError(f"Ray's actors have not joined within {JOIN_TIMEOUT:g} s")

    def close(self) -> None:
        """Idempotent."""
        closing = threading.Thread(target=self._give_back, name="ray: close", daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT)

    def _reserve(self, n_workers: int) -> None:
        bundle = {"CPU": self._need.cpus} | ({"GPU": self._need.gpus} if self._need.gpus else {})
        what = "asking Ray's cluster at %s for %d x %s (%s)"
        _log.info(what, cluster.address(), n_workers, self._need, STRATEGY)
        self._group = placement_group([bundle] * n_workers, strategy=STRATEGY)
        started, said = time.monotonic(), False
        while placement_group_table(self._group)["state"] != "CREATED":
            time.sleep(_CHECK_PERIOD)
            waited = time.monotonic() - started
            if waited > self._ray.patience:
                why = lack(cluster.address(), cluster.nodes(), n_workers, self._need)
                raise EngineError(f"{why} (waited for {self._ray.patience:g} s: --placement-timeout)")
            if waited > SAY_AFTER and not said:
                why = lack(cluster.address(), cluster.nodes(), n_workers, self._need)
                _log.warning("%s; waiting for up to %g s", why, self._ray.patience)
                said = True

    def _bundles(self) -> list[tuple[int, str]]:
        """Parts of the room, and the node of each: those of a node together, as are then neighbours in the model."""
        nodes: dict[int, str] = placement_group_table(self._group)["bundles_to_node_id"]
        sizes = {node: list(nodes.values()).count(node) for node in nodes.values()}
        return sorted(nodes.items(), key=lambda item: (-sizes[item[1]], item[1], item[0]))

    def _give_back(self) -> None:
        try:
            for actor in self._actors:
                ray.kill(actor)
            if self._group is not None:
                remove_placement_group(self._group)
        except (RayError, RuntimeError, ValueError) as error:
            _log.debug("giving back what Ray placed: %s", error)
        self._actors, self._runs, self._group = [], {}, None
        if self._ours:
            self._ours = False
            ray.shutdown()


def _located(where: str, error: OrcaServeError) -> OrcaServeError:
    """The same of a node's, with its name."""
    if isinstance(error, ConfigError):
        return ConfigError(error.name, f"on {where}: {str(error).removeprefix(f'{error.name}: ')}")
    return (type(error) if isinstance(error, ModelError) else EngineError)(f"{where}: {error}")


def _first_line(error: Exception) -> str:
    """Ray tells long stories; the last line of a traceback says what it was."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
