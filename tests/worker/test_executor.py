"""The device executor: one thread, in order."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from orcaserve.worker.executor import DeviceExecutor


def test_calls_run_in_order_on_one_thread_of_that_name() -> None:
    executor = DeviceExecutor("worker s0r0")
    seen: list[int] = []
    for i in range(100):
        executor.post(lambda i=i: seen.append(i))  # type: ignore[misc]
    assert executor.call(lambda: len(seen)) == 100
    assert seen == list(range(100))
    assert executor.call(lambda: threading.current_thread().name) == "worker s0r0"
    assert executor.call(lambda: Path("/proc/thread-self/comm").read_text().strip()) == "worker s0r0"
    executor.close()
    executor.close()


def test_call_raises_what_the_function_raises_and_the_thread_goes_on() -> None:
    executor = DeviceExecutor("x")
    with pytest.raises(ZeroDivisionError):
        executor.call(lambda: 1 // 0)
    assert executor.call(lambda: 7) == 7
    executor.close()


def test_close_waits_for_what_was_posted() -> None:
    executor = DeviceExecutor("x")
    gate, done = threading.Event(), threading.Event()

    def slow() -> None:
        if gate.wait(5):
            done.set()

    executor.post(slow)
    threading.Timer(0.05, gate.set).start()
    executor.close()
    assert done.is_set()
