"""How much room a cluster has for workers. Numbers only, no Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """What one worker asks for."""

    cpus: int
    gpus: int = 0

    def __str__(self) -> str:
        gpus = f" and {self.gpus} GPU{'s' * (self.gpus > 1)}" if self.gpus else ""
        return f"{self.cpus} CPU{'s' * (self.cpus > 1)}{gpus}"


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """What a node has in all, and what is free of it."""

    name: str
    cpus: float
    free_cpus: float
    gpus: float = 0
    free_gpus: float = 0


def cpus_each(nodes: Sequence[float], n_workers: int) -> int:
    """The most CPUs that each of so many workers can have on nodes with so many; 1 if there is no room for all."""
    for cpus in range(int(max(nodes, default=0)), 1, -1):
        if sum(int(node // cpus) for node in nodes) >= n_workers:
            return cpus
    return 1


def lack(where: str, nodes: Sequence[NodeRoom], n_workers: int, need: Need) -> str:
    """Why there is no room, in one line."""
    whom = f"{n_workers} workers" if n_workers > 1 else "a worker"
    each = " each" if n_workers > 1 else ""
    has = "; ".join(_room(node, gpus=need.gpus > 0) for node in nodes)
    return f"Ray's cluster at {where} has no room for {whom} with {need}{each}: free are {has or 'no nodes at all'}"


def _room(node: NodeRoom, gpus: bool) -> str:
    and_gpus = f" and {node.free_gpus:g} of {node.gpus:g} GPUs" if gpus else ""
    return f"{node.free_cpus:g} of {node.cpus:g} CPUs{and_gpus} on {node.name}"
