"""How the sides of the control plane talk: Unix sockets, TCP between machines, and the options of their channels."""

from __future__ import annotations

import socket
from pathlib import Path

import grpc

from orcaserve.control_plane.codec import MAX_MESSAGE_BYTES
from orcaserve.control_plane.tls import Tls

HEARTBEAT_SECONDS = 0.5  # an engine that has said nothing for so long says that it lives
MAX_SOCKET_PATH = 107  # bytes; the kernel's limit for the address of a Unix socket, less its closing zero

OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a channel of its own: nothing is shared with a former engine's
    # The endpoint calls while the engine's interpreter still starts: try again soon, not after gRPC's usual second.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
]

# For servers whose callers send pings: without these two gRPC ends a connection on which pings come while nothing else
# does ("too many pings"), as on an engine that waits for requests.
SERVER_OPTIONS: list[tuple[str, int]] = [
    *OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", 0),
    ("grpc.http2.max_ping_strikes", 0),
]

# Between machines: a connection may take several round trips to be made, and a second to be tried again.
NETWORK_OPTIONS: list[tuple[str, int]] = [
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


def keepalive(timeout: float) -> list[tuple[str, int]]:
    """Options of a caller that takes a server for lost which answers no ping for `timeout` seconds."""
    half = int(timeout * 500)
    return [
        ("grpc.keepalive_time_ms", half),
        ("grpc.keepalive_timeout_ms", half),
        (
            "grpc.http2.ping_timeout_ms",
            half,
        ),  # else a minute: it bounds the wait for the answer, the one above does not
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def target_of(path: Path) -> str:
    """The gRPC name of a Unix socket."""
    return f"unix:{path}"


def tcp_target(host: str, port: int) -> str:
    """The gRPC name of a TCP port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_target(target: str) -> tuple[str, int]:
    """What `tcp_target` made one of."""
    host, _, port = target.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def channel_to(target: str, timeout: float, tls: Tls | None = None) -> grpc.Channel:
    """A channel whose server is taken for lost when it answers no ping for `timeout` seconds.

    tls: not for Unix sockets.
    """
    network = [] if is_local(target) else NETWORK_OPTIONS
    names = {name for name, _ in network}
    options = [option for option in OPTIONS if option[0] not in names]
    options += [*network, *keepalive(timeout)]
    if tls is None or is_local(target):
        return grpc.insecure_channel(target, options=options)
    return tls.channel(target, options)


def listen(server: grpc.Server, target: str, tls: Tls | None) -> int:
    """Have the server listen there; its port, if it has one. Raises RuntimeError."""
    if tls is None or is_local(target):
        return server.add_insecure_port(target)
    return server.add_secure_port(target, tls.server_credentials())


def own_address(host: str, port: int) -> str:
    """The address by which this machine reaches that host, and so one by which it is reached. Raises OSError."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # a datagram socket: nothing is sent
        return str(probe.getsockname()[0])


def listen_at(address: str) -> socket.socket:
    """A socket that listens at this address of this machine, at any port. Raises OSError."""
    return socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)


def is_local(target: str) -> bool:
    """Whether it is a Unix socket, whose folder says who may call."""
    return target.startswith("unix:")


def worker_socket(folder: Path, name: str) -> Path:
    """Where a worker listens, s0r0 say, in the folder that an engine's workers share."""
    return folder / f"{name}.sock"
