"""Which machine runs which workers."""

from __future__ import annotations

import pytest

from orcaserve.config import EngineConfig, ModelConfig, NodesConfig, ParallelConfig, check_open, split_address
from orcaserve.core import ConfigError
from orcaserve.data_plane.protocol import Place
from orcaserve.engine.placement import deal

SECRET = "0123456789abcdef"


def names(p: int, t: int, n_nodes: int, counts: tuple[int, ...] | None = None) -> list[str]:
    places = [Place(stage, shard, p, t) for stage in range(p) for shard in range(t)]
    nodes = NodesConfig(n_nodes, "127.0.0.1:7000" if n_nodes > 1 else None, counts)
    return [" ".join(place.name for place in share) for share in deal(places, nodes)]


def test_places_are_dealt_in_order() -> None:
    assert names(2, 1, 2) == ["s0r0", "s1r0"]
    assert names(2, 2, 2) == ["s0r0 s0r1", "s1r0 s1r1"]
    assert names(1, 3, 2) == ["s0r0 s0r1", "s0r2"]
    assert names(5, 1, 3) == ["s0r0 s1r0", "s2r0 s3r0", "s4r0"]
    assert names(2, 2, 2, (1, 3)) == ["s0r0", "s0r1 s1r0 s1r1"]
    assert names(3, 1, 1) == ["s0r0 s1r0 s2r0"]


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ((2, None, None, ""), "--listen-workers: say where"),
        ((1, "127.0.0.1:7000", None, ""), "--nnodes: say how many"),
        ((0, None, None, ""), "--nnodes: must be an integer of 1"),
        ((2, "10.0.0.1:7000", None, ""), "--listen-workers: 10.0.0.1 is open to other machines"),
        ((2, "0.0.0.0:7000", None, ""), "--listen-workers: 0.0.0.0 is open"),
        ((2, "some.host:7000", None, ""), "--listen-workers: some.host is open"),
        ((2, "127.0.0.1:7000", None, "short"), "--secret-file: must hold at least 16"),
        ((2, "127.0.0.1:7000", (1, 1, 1), ""), "--worker-counts: names 3 machines"),
        ((2, "127.0.0.1:7000", (2, 0), ""), "--worker-counts: must be"),
        ((3, "127.0.0.1:7000", None, ""), "--nnodes: must be at most the 2 workers"),
        ((2, "127.0.0.1:7000", (2, 1), ""), "--worker-counts: must add up to the 2"),
    ],
)
def test_what_makes_no_sense(nodes: tuple[int, str | None, tuple[int, ...] | None, str], words: str, odd_model) -> None:
    with pytest.raises(ConfigError, match=f"^{words}"):
        EngineConfig(ModelConfig(odd_model, "m"), parallel=ParallelConfig(2), nodes=NodesConfig(*nodes))


def test_replicas_share_one_machine(odd_model) -> None:
    parallel, nodes = ParallelConfig(2, data_parallel_size=2), NodesConfig(2, "127.0.0.1:7000")
    with pytest.raises(ConfigError, match=r"^--data-parallel-size: .*--nnodes"):
        EngineConfig(ModelConfig(odd_model, "m"), parallel=parallel, nodes=nodes)


def test_settings_travel_and_the_secret_is_not_printed(odd_model) -> None:
    nodes = NodesConfig(2, "10.0.0.1:7000", (1, 1), SECRET)
    config = EngineConfig(ModelConfig(odd_model, "m"), parallel=ParallelConfig(2), nodes=nodes)
    assert EngineConfig.from_json(config.to_json()) == config
    assert SECRET not in repr(config)


def test_addresses() -> None:
    assert split_address("x", "10.0.0.1:7000") == ("10.0.0.1", 7000)
    assert split_address("x", "[fd00::1]:7000") == ("fd00::1", 7000)
    for wrong in ("7000", ":7000", "host:", "host:0", "host:65536", "host:x"):
        with pytest.raises(ConfigError):
            split_address("x", wrong)
    for inside in ("127.0.0.1", "localhost", "::1"):
        check_open("x", inside, "")
    check_open("x", "10.0.0.1", SECRET)
