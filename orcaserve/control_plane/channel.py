"""How the two sides of the control plane talk: a Unix socket, and the options of its gRPC channel."""

from __future__ import annotations

from pathlib import Path

from orcaserve.control_plane.codec import MAX_MESSAGE_BYTES

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


def target_of(socket: Path) -> str:
    """The gRPC name of a Unix socket."""
    return f"unix:{socket}"
