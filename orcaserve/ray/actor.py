"""What runs in an actor of Ray's: a node that has one worker."""

from __future__ import annotations

import json
from pathlib import Path

from orcaserve.control_plane import worker_codec as codec
from orcaserve.core import OrcaServeError
from orcaserve.node.agent import NodeAgent, NodeSettings


class WorkerHost:
    """The actor. Its process starts the worker's as `orcaserve worker` does, so it ends with this one."""

    def run(self, settings: str) -> bytes:
        """Join an engine and be part of it until it ends. settings: NodeSettings in JSON.

        Returns what was wrong with this node, a WorkerFailure of the control plane; nothing if nothing was.
        """
        words = json.loads(settings)
        try:
            NodeAgent(NodeSettings(**{**words, "model": Path(words["model"])})).run_once()
        except OrcaServeError as error:
            return bytes(codec.encode_failure(error).failure.SerializeToString())
        return b""
