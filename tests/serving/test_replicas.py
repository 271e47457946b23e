"""Replicas over engines without a model: who gets a request, and what goes on where when one of them dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fake_engines import FakeProcess, assert_whole, read, request, until
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.config import EngineConfig, ModelConfig, ParallelConfig, ServingConfig
from orcaserve.core import EngineError, Progress
from orcaserve.core.errors import CRASHED_TWICE, ENGINE_LOST
from orcaserve.serving import supervisor as module
from orcaserve.serving.replicas import Load, Replicas, engines_for, least_loaded
from orcaserve.serving.supervisor import Supervisor

asynchronous = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop")]
loads = st.lists(st.builds(Load, st.integers(0, 5), st.booleans(), st.booleans()), min_size=1, max_size=8).filter(
    lambda some: not all(load.given_up for load in some)
)


@given(loads)
def test_the_choice(some: list[Load]) -> None:
    chosen = some[number := least_loaded(some)]
    assert not chosen.given_up
    living = [(n, load) for n, load in enumerate(some) if not load.given_up]
    assert chosen.present or not any(load.present for _, load in living)
    for n, load in living:
        if load.present == chosen.present:
            assert (chosen.n_reserved, number) <= (load.n_reserved, n)


@given(st.integers(1, 5), st.lists(st.integers(1, 50), max_size=60))
def test_loads_stay_as_near_as_the_largest_request(n: int, needs: list[int]) -> None:
    """As long as nothing ends, no two replicas differ by more than one request may need."""
    reserved = [0] * n
    for need in needs:
        reserved[least_loaded([Load(each) for each in reserved])] += need
        assert max(reserved) - min(reserved) <= max(needs)


def config(n: int) -> EngineConfig:
    return EngineConfig(ModelConfig(Path("none"), "fake"), parallel=ParallelConfig(data_parallel_size=n))


@asynccontextmanager
async def replicated(n: int = 2) -> AsyncIterator[Replicas]:
    replicas = Replicas(ServingConfig(), config(n))
    replicas.start()
    try:
        await replicas.connect()
        yield replicas
    finally:
        await replicas.close()


def test_one_replica_is_a_supervisor_and_nothing_else() -> None:
    assert isinstance(engines_for(ServingConfig(), config(1)), Supervisor)
    assert isinstance(engines_for(ServingConfig(), config(2)), Replicas)


class TestOverEngines:
    pytestmark = asynchronous

    async def test_all_have_the_slots_that_the_first_found_room_for(self, processes: type[FakeProcess]) -> None:
        async with replicated(3) as r:
            assert [process.config.kv.n_slots for process in processes.started] == [None, 4096, 4096]
            assert r.facts.n_slots == 4096 and r.present and len(r.replicas) == 3

    async def test_requests_are_spread_by_what_they_may_need(self, processes: type[FakeProcess]) -> None:
        async with replicated(2) as r:
            streams = [r.submit(request(i, n)) for i, n in enumerate((100, 20, 30, 50, 10))]
            assert [each.n_open for each in r.replicas] == [2, 3], "100 + 10 against 20 + 30 + 50"
            assert [each.n_reserved for each in r.replicas] == [100 + 10 + 2 * 3, 20 + 30 + 50 + 3 * 3]
            r.cancel(3)
            ends = [await read(stream) for stream in streams]
            assert_whole(ends[0], 100)
            assert_whole(ends[2], 30)
            assert r.n_open == 0 and [each.n_reserved for each in r.replicas] == [0, 0]

    async def test_requests_wait_for_their_own_replica_and_new_ones_go_elsewhere(
        self, processes: type[FakeProcess]
    ) -> None:
        async with replicated(2) as r:
            restarts = []
            r.replicas[1].on_restart = lambda: restarts.append(1)
            streams = [r.submit(request(i)) for i in range(4)]
            await anext(streams[1])
            processes.load_error = EngineError("not yet")
            await processes.started[1].kill()
            await until(lambda: not r.replicas[1].present)
            late = [r.submit(request(10 + i)) for i in range(2)]
            assert set(r.replicas[0]._ongoing.ids) >= {10, 11} and r.present
            processes.load_error = None
            news = [await read(stream) for stream in (*streams, *late)]
            assert news.pop(1)[-1].token == 152
            for each in news:
                assert_whole(each)
            await until(lambda: restarts == [1])

    async def test_with_no_replica_present_requests_wait(self, processes: type[FakeProcess]) -> None:
        async with replicated(2) as r:
            processes.load_error = EngineError("not yet")
            for process in processes.started[:2]:
                await process.kill()
            await until(lambda: not r.present)
            streams = [r.submit(request(i)) for i in range(4)]
            assert [each.n_open for each in r.replicas] == [2, 2]
            processes.load_error = None
            for stream in streams:
                assert_whole(await read(stream))

    async def test_one_that_is_given_up_leaves_its_requests_to_the_others(
        self, processes: type[FakeProcess], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MAX_RESTARTS", 2)
        async with replicated(2) as r:
            streams = [r.submit(request(i)) for i in range(4)]
            await anext(streams[1])
            processes.load_error = EngineError("never")
            await processes.started[1].kill()
            assert [len(await read(stream)) for stream in (streams[0], streams[2])] == [150, 150]
            news = [await read(stream) for stream in (streams[1], streams[3])]
            assert news[0][-1].token == 152
            assert_whole(news[1])
            await until(r.replicas[1].closed.is_set)
            assert not r.closed.is_set() and r.present
            assert_whole(await read(r.submit(request(9))))

    async def test_the_end_of_the_last_is_the_end_of_all(
        self, processes: type[FakeProcess], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MAX_RESTARTS", 1)
        async with replicated(2) as r:
            streams = [r.submit(request(i)) for i in range(2)]
            processes.load_error = EngineError("never")
            for process in processes.started[:2]:
                await process.kill()
            async with asyncio.timeout(20):
                await r.closed.wait()
            for stream in streams:
                # One that had gone to the other before that died too was in two crashes.
                assert (await read(stream))[-1].error in (ENGINE_LOST, CRASHED_TWICE)
            assert "the last one" in str(r.reason)
            with pytest.raises(EngineError):
                r.submit(request(9))

    async def test_silence_is_that_of_a_replica_with_work(self, processes: type[FakeProcess]) -> None:
        """One that had nothing to do for long is not to blame for its silence once it gets a request."""
        async with replicated(2) as r:
            now = asyncio.get_running_loop().time()
            for each in r.replicas:
                assert each._client is not None
                each._client.last_report = now - 1000
            assert r.last_report >= now
            stream = r.submit(request(1))
            assert r.last_report >= now
            news: list[Progress] = await read(stream)
            assert_whole(news)

    async def test_what_fails_while_the_others_start(self, processes: type[FakeProcess]) -> None:
        r = Replicas(ServingConfig(), config(2))
        r.start()
        await r.replicas[0].connect()
        processes.load_error = EngineError("no room")
        with pytest.raises(EngineError, match="no room"):
            await r.connect()
        await r.close()
