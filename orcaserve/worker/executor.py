"""DeviceExecutor: the one thread on which a worker's model is loaded and run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from orcaserve.process import name_thread

T = TypeVar("T")


class DeviceExecutor:
    """Runs calls one after the other, first in, first out, on a thread of its own.

    Everything of a worker happens here, loading too: a math library keeps a team of threads for each thread that calls
    it, and a second team would only take memory and cores.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, call: Callable[[], None]) -> None:
        """Run `call` in its turn. It must not raise."""
        self._calls.put(call)

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` in its turn, wait, and return or raise what it does. Not from the executor's own thread."""
        future: Future[T] = Future()

        def settle() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self.post(settle)
        return future.result()

    def close(self) -> None:
        """Wait for what was posted, then end the thread. Idempotent."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        name_thread(self._thread.name)
        while (call := self._calls.get()) is not None:
            call()
