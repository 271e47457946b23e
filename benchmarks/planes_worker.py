"""A worker process without a model, for planes.py: what is left of an iteration is the two planes.

PLANES_WAY in the environment: `control` (nothing but control messages), `both` (and tensors, as an iteration of the
default model moves them), or `through` (as both, with control messages as tensors on the data plane between stages: the
paper's alternative).
"""

from __future__ import annotations

import os
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np

from orcaserve.control_plane import worker_codec as codec
from orcaserve.control_plane import worker_pb2 as wire
from orcaserve.core import IterationResult
from orcaserve.worker import process
from orcaserve.worker.controller import WorkerController

HIDDEN, LAYERS, SUMS = 576, 30, 2  # of the default model; sums over shards in a layer


class EmptyWorker(WorkerController):
    """The controller as it is, with transfers in the place of an iteration."""

    def _load(self) -> Any:
        self._way = os.environ["PLANES_WAY"]
        self._pending: deque[int] = deque()
        return SimpleNamespace(slot_bytes=1, expect=self._pending.append, spans=[])

    def _join(self, start: wire.Start) -> None:
        if self._way != "control":
            self._plane: Any = self._meet(start)

    def start(self, start: wire.Start) -> None:
        super().start(start)
        if self._way == "through":
            self._stream, self._next = self._next, None  # connected, and not used
            if self._place.stage:
                self._executor.post(self._take_from_plane)

    def _run(self, batch: Any, forwarded: Any) -> None:
        if self._way == "through" and not self._place.last:
            self._pass_on(codec.encode_iteration(batch).SerializeToString())
        if self._way != "control":
            self._move(batch.n_tokens)
        if self._answers:
            tokens = [1] * len(batch.entries)
            self._server.send(codec.encode_result(IterationResult(batch.iteration, tokens)))

    def _move(self, n: int) -> None:
        """The tensors of an iteration of n tokens."""
        place = self._place
        rows = np.zeros((n, HIDDEN), np.float32)
        if place.stage:
            rows = self._plane.receive(n, HIDDEN).wait()
        if place.n_shards > 1:
            n_sums = SUMS * LAYERS // place.n_stages
            for i in range(n_sums):
                self._plane.all_reduce(rows.reshape(-1), rows.size if i + 1 < n_sums else 0)
        if not place.last:
            self._plane.send(rows)

    def _pass_on(self, message: bytes) -> None:
        padded = message + bytes(-len(message) % 4)
        self._plane.send(np.array([[len(message)]], np.float32))
        self._plane.send(np.frombuffer(bytearray(padded), np.float32).reshape(1, -1))

    def _take_from_plane(self) -> None:
        """One control message, and then the next, for as long as the process lives."""
        n = int(self._plane.receive(1, 1).wait()[0, 0])
        numbers = self._plane.receive(1, -(-n // 4)).wait()
        self._run(codec.decode_iteration(wire.Iteration.FromString(numbers.tobytes()[:n])), None)
        self._executor.post(self._take_from_plane)


if __name__ == "__main__":
    process.WorkerController = EmptyWorker  # type: ignore[misc]
    process.main()
