"""PlacedMachines: the machines of an engine whose workers Ray places."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from orcaserve.checkpoint.fingerprint import fingerprint
from orcaserve.config import EngineConfig
from orcaserve.control_plane.channel import tcp_target
from orcaserve.control_plane.node_service import NodeServer
from orcaserve.core import ConfigError
from orcaserve.data_plane.protocol import Place
from orcaserve.engine.machines import Machines, checker

if TYPE_CHECKING:
    from orcaserve.ray.placement import Placement

_log = logging.getLogger(__name__)


class PlacedMachines(Machines):
    """A node for each worker, in an actor of Ray's, wherever that is; none of them is this machine's own.

    Nodes join as those do that are started by hand, and prove a secret that each engine makes anew.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Raises ConfigError without Ray."""
        super().__init__(config)
        if find_spec("ray") is None:
            raise ConfigError("--distributed-executor-backend", "ray is not installed: pip install 'orcaserve[ray]'")
        self.secret = secrets.token_hex(32)
        self._placement: Placement | None = None

    def gather(self) -> None:
        """Find room for all workers, and wait until their nodes have joined.

        Raises EngineError, with numbers, if there is no room; ModelError or ConfigError of a node whose machine has not
        the same model.
        """
        from orcaserve.ray.cluster import join  # late: it brings Ray

        config = self._config
        assert config.ray is not None
        check = checker(*fingerprint(config.model.path))
        n_workers, timeout = config.parallel.n_workers, config.parallel.worker_timeout
        joined = join(config.ray, n_workers * (config.model.threads or 1))
        from orcaserve.ray.placement import Placement  # not before: Ray takes settings when it is imported

        placement = self._placement = Placement(config, ours=joined)
        self._server = NodeServer(placement.address, 0, self.secret, timeout, n_workers, check)
        placement.start(tcp_target(placement.address, self._server.port), self.secret)
        self.nodes = self._server.gather(placement.check)

    def shares(self, places: Sequence[Place]) -> list[list[Place]]:
        return [[], *([place] for place in places)]

    def close(self, goodbye: bool) -> None:
        super().close(goodbye)
        if self._placement is not None:
            self._placement.close()
