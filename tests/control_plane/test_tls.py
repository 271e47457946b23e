"""Mutual TLS: who is let in, and what those read who are not."""

from __future__ import annotations

import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import grpc
import pytest

from orcaserve.control_plane import nodes_pb2 as wire
from orcaserve.control_plane.channel import channel_to, tcp_target
from orcaserve.control_plane.node_client import NodeLink
from orcaserve.control_plane.node_service import NodeServer
from orcaserve.control_plane.tls import Tls, meet
from orcaserve.core import ConfigError, EngineError
from orcaserve.core.tls import TlsFiles

sys.path.insert(0, str(Path(__file__).parents[1]))
from certificates import Authority

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="module")
def server_files(ours: Authority) -> TlsFiles:
    return ours.issue("server")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def serve(tls: Tls | None) -> tuple[NodeServer, int]:
    port = free_port()
    return NodeServer("127.0.0.1", port, "", 10, 1, lambda hello: None, tls), port


@pytest.fixture(scope="module")
def port(server_files: TlsFiles) -> Iterator[int]:
    server, port = serve(Tls(server_files))
    yield port
    server.close(goodbye=False)


@pytest.fixture(scope="module")
def plain_port() -> Iterator[int]:
    server, port = serve(None)
    yield port
    server.close(goodbye=False)


def refusal(port: int, tls: Tls | None) -> str:
    started = time.monotonic()
    with pytest.raises(ConfigError) as error:
        NodeLink(tcp_target("127.0.0.1", port), "", wire.Hello(), 10, 10, SimpleQueue(), tls)
    assert time.monotonic() - started < 10, "it is no hang"
    return str(error.value).replace(f"127.0.0.1:{port}", "HOST")


def test_machines_of_one_authority_talk(ours: Authority, server_files: TlsFiles) -> None:
    server, port = serve(Tls(server_files))
    news: SimpleQueue[wire.ToNode | str] = SimpleQueue()
    link = NodeLink(tcp_target("127.0.0.1", port), "", wire.Hello(name="n"), 10, 10, news, Tls(ours.issue("node")))
    (node,) = server.gather()
    node.assign([(1, 0)], "settings")
    message = news.get(timeout=10)
    assert not isinstance(message, str) and message.assignment.config == "settings"
    server.close(goodbye=True)
    link.close()


def test_a_caller_waits_for_a_server_that_is_not_there_yet(ours: Authority, server_files: TlsFiles) -> None:
    port, tls = free_port(), Tls(ours.issue("node"))
    servers: list[NodeServer] = []

    def late() -> None:
        time.sleep(0.7)
        servers.append(NodeServer("127.0.0.1", port, "", 10, 1, lambda hello: None, Tls(server_files)))

    thread = threading.Thread(target=late)
    thread.start()
    meet("127.0.0.1", port, tls, 20)
    thread.join()
    servers[0].close(goodbye=False)
    with pytest.raises(EngineError, match="does not answer"):
        meet("127.0.0.1", port, tls, 0.3)


def test_a_caller_of_another_authority(port: int, other: Authority) -> None:
    assert refusal(port, Tls(other.issue("node"))) == (
        "--tls-ca: the certificate of HOST is not of the authority in --tls-ca"
    )


def test_a_caller_whose_certificate_is_of_another_authority(port: int, ours: Authority, other: Authority) -> None:
    """Though it knows the server's."""
    both = ours.cert.parent / "both.pem"
    both.write_bytes(ours.cert.read_bytes() + other.cert.read_bytes())
    stranger = Tls(replace(other.issue("node"), ca=both))
    assert refusal(port, stranger) == "--tls-cert: HOST does not take it: its --tls-ca is of another authority"


def test_a_certificate_that_expires_while_its_machine_runs(port: int, ours: Authority) -> None:
    files, expired = ours.issue("soon"), ours.issue("late", expired=True)
    tls = Tls(files)
    shutil.copyfile(expired.cert, files.cert)
    shutil.copyfile(expired.key, files.key)
    assert refusal(port, tls) == f"--tls-cert: {files.cert} has expired"


def test_a_certificate_made_out_to_others(port: int, ours: Authority) -> None:
    """It is refused at home; and a caller that does not look is refused by the server, whatever it calls."""
    files = ours.issue("neighbour", name="database")
    with pytest.raises(ConfigError, match="made out to the name orcaserve: its subjectAltName must hold DNS:orcaserve"):
        Tls(files)
    pems = [path.read_bytes() for path in (files.ca, files.key, files.cert)]
    options = [("grpc.ssl_target_name_override", "orcaserve")]
    with grpc.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(*pems), options) as channel:
        for method in ("/orcaserve.v1.Door/Challenge", "/orcaserve.v1.Nodes/Join"):
            call = channel.stream_stream(method) if "Join" in method else channel.unary_unary(method)
            with pytest.raises(grpc.RpcError) as error:
                list(call(iter([b""]), timeout=5)) if "Join" in method else call(b"", timeout=5)
            assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_only_one_side_speaks_it(port: int, plain_port: int, ours: Authority) -> None:
    assert refusal(port, None) == "--tls-cert: HOST speaks TLS: give --tls-cert, --tls-key and --tls-ca"
    words = "--tls-cert: HOST speaks no TLS: give its server the same three flags, or leave them out here"
    assert refusal(plain_port, Tls(ours.issue("node"))) == words


def test_nobody_without_a_certificate_gets_through(port: int, ours: Authority) -> None:
    """Whatever is said before: the server itself asks."""
    credentials = grpc.ssl_channel_credentials(ours.cert.read_bytes())
    options = [("grpc.ssl_target_name_override", "orcaserve")]
    for channel in (
        grpc.secure_channel(f"127.0.0.1:{port}", credentials, options),
        channel_to(f"127.0.0.1:{port}", 5),
    ):
        with channel, pytest.raises(grpc.RpcError) as error:
            channel.unary_unary("/orcaserve.v1.Door/Challenge")(b"", timeout=2)
        assert error.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_files_that_are_of_no_use(ours: Authority, other: Authority, tmp_path: Path) -> None:
    files, stranger = ours.issue("node"), other.issue("node")
    nothing = tmp_path / "nothing"
    for wrong, words in (
        (replace(files, cert=nothing), f"--tls-cert: {nothing} cannot be read: No such file or directory"),
        (replace(files, ca=nothing), f"--tls-ca: {nothing} cannot be read: No such file or directory"),
        (replace(files, key=stranger.key), f"--tls-key: {stranger.key} is not the key of {files.cert}"),
        (replace(files, ca=files.key), f"--tls-ca: {files.key} holds no certificate"),
        (replace(files, cert=files.key), f"--tls-cert: {files.key} and --tls-key are no certificate and key without"),
        (replace(files, ca=stranger.ca), f"--tls-cert: {files.cert} is not of the authority in --tls-ca"),
        (ours.issue("old", expired=True), "has expired"),
    ):
        with pytest.raises(ConfigError) as error:
            Tls(wrong)
        assert words in str(error.value)
    files.key.chmod(0o640)
    with pytest.raises(ConfigError, match=r"--tls-key: .* is open to other users: chmod 600"):
        Tls(files)


def test_a_peer_that_says_nothing_is_no_hang(ours: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for tls in (None, Tls(ours.issue("node"))):
            started = time.monotonic()
            with pytest.raises(EngineError, match="does not answer"):
                meet("127.0.0.1", silent.getsockname()[1], tls, 0.5)
            assert time.monotonic() - started < 3
