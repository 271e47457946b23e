"""Who may call over TCP: real servers on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from orcaserve.control_plane import nodes_pb2 as wire
from orcaserve.control_plane.auth import MAX_NONCES, Door, authenticate
from orcaserve.control_plane.channel import channel_to
from orcaserve.control_plane.nodes_pb2_grpc import DoorStub, NodesServicer, NodesStub, add_NodesServicer_to_server
from orcaserve.core import ConfigError, EngineError

SECRET, JOIN = "0123456789abcdef", "/orcaserve.v1.Nodes/Join"


class Nodes(NodesServicer):
    def Join(self, request_iterator: Iterator[wire.FromNode], context: grpc.ServicerContext) -> Iterator[wire.ToNode]:
        yield wire.ToNode(goodbye=wire.Goodbye())


@pytest.fixture(scope="module")
def door() -> Iterator[tuple[Door, str]]:
    door = Door(SECRET)
    server = grpc.server(ThreadPoolExecutor(2), interceptors=[door])
    door.add_to(server)
    add_NodesServicer_to_server(Nodes(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield door, f"127.0.0.1:{port}"
    server.stop(0).wait()


def join(channel: grpc.Channel, metadata: object) -> list[wire.ToNode]:
    return list(NodesStub(channel).Join(iter(()), metadata=metadata, timeout=10))


def test_who_has_the_secret_may_call_once_for_each_challenge(door: tuple[Door, str]) -> None:
    with channel_to(door[1], 30) as channel:
        metadata = authenticate(channel, door[1], SECRET, JOIN, 10)
        assert len(join(channel, metadata)) == 1
        with pytest.raises(grpc.RpcError) as again:
            join(channel, metadata)
        assert again.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_proof_is_for_one_method(door: tuple[Door, str]) -> None:
    with channel_to(door[1], 30) as channel:
        metadata = authenticate(channel, door[1], SECRET, "/orcaserve.v1.Worker/Attach", 10)
        with pytest.raises(grpc.RpcError) as refusal:
            join(channel, metadata)
        assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("metadata", [None, (("orcaserve-nonce-bin", b""), ("orcaserve-proof-bin", b""))])
def test_who_has_nothing_may_not(metadata: object, door: tuple[Door, str]) -> None:
    with channel_to(door[1], 30) as channel, pytest.raises(grpc.RpcError) as refusal:
        join(channel, metadata)
    assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_the_server_must_have_it_too(door: tuple[Door, str]) -> None:
    with channel_to(door[1], 30) as channel, pytest.raises(ConfigError, match="--secret-file"):
        authenticate(channel, door[1], "another 16 characters", JOIN, 10)


def test_nobody_there() -> None:
    with channel_to("127.0.0.1:9", 30) as channel, pytest.raises(EngineError, match="does not answer"):
        authenticate(channel, "127.0.0.1:9", SECRET, JOIN, 0.5)


def test_strangers_take_up_no_room(door: tuple[Door, str]) -> None:
    with channel_to(door[1], 30) as channel:
        for _ in range(MAX_NONCES + 10):
            DoorStub(channel).Challenge(wire.Nonce(nonce=b"x"), timeout=10)
        assert len(door[0]._nonces) <= MAX_NONCES
        assert len(join(channel, authenticate(channel, door[1], SECRET, JOIN, 10))) == 1
