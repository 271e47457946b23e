"""gRPC's health service (grpc.health.v1), the one call of it: Check, for the server as a whole.

The two messages are so small that they are written out here instead of generated: a HealthCheckResponse is one field,
the number 1 with the status as a varint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"


def health_handler(serving: Callable[[], bool]) -> grpc.GenericRpcHandler:
    """For `add_generic_rpc_handlers`. serving: asked at every call; it must not block."""

    def check(request: bytes, context: grpc.ServicerContext) -> bytes:
        if request:
            context.abort(grpc.StatusCode.NOT_FOUND, "only the whole server's health is known: name no service")
        return _SERVING if serving() else _NOT_SERVING

    return grpc.method_handlers_generic_handler(
        "grpc.health.v1.Health", {"Check": grpc.unary_unary_rpc_method_handler(check)}
    )


def is_serving(channel: grpc.Channel, timeout: float) -> bool:
    """Ask a server. Raises grpc.RpcError if it does not answer within `timeout` seconds."""
    check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
    return bool(check(b"", timeout=timeout) == _SERVING)
