"""Who may call over TCP: whoever proves that he has the shared secret, to a server that proves the same.

The secret never travels. Each call needs a challenge of its own, so what was overheard cannot be said again. What
follows on the stream is neither encrypted nor signed: that is the network's business (docs/distributed.md).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import Any

import grpc

from orcaserve.control_plane import nodes_pb2 as wire
from orcaserve.control_plane.nodes_pb2_grpc import DoorServicer, DoorStub, add_DoorServicer_to_server
from orcaserve.core import ConfigError, EngineError

NONCE_BYTES = 32
NONCE_LIFE = 30.0  # s from the challenge to the call
MAX_NONCES = 256  # that wait for their call: strangers may ask for challenges, but take up no more room
DOOR = "/orcaserve.v1.Door/Challenge"
Metadata = tuple[tuple[str, bytes], ...]
SERVER, CALLER = b"server", b"caller"  # a proof of one side is none of the other's
_NONCE, _PROOF = "orcaserve-nonce-bin", "orcaserve-proof-bin"


def proof(secret: str, side: bytes, *parts: bytes) -> bytes:
    """HMAC over the parts, each behind its length."""
    mac = hmac.new(secret.encode(), side, hashlib.sha256)
    for part in parts:
        mac.update(len(part).to_bytes(4) + part)
    return mac.digest()


class Door(grpc.ServerInterceptor, DoorServicer):
    """Lets calls through that carry a proof, and gives out challenges.

    door = Door(secret)
    server = grpc.server(pool, interceptors=[door])
    door.add_to(server)
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._nonces: dict[bytes, tuple[bytes, float]] = {}  # ours -> the caller's, and until when

    def add_to(self, server: grpc.Server) -> None:
        add_DoorServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    def Challenge(self, request: wire.Nonce, context: grpc.ServicerContext) -> wire.Challenged:
        nonce, now = secrets.token_bytes(NONCE_BYTES), time.monotonic()
        for old, (_, until) in list(self._nonces.items()):
            if until < now or len(self._nonces) >= MAX_NONCES:
                self._nonces.pop(old, None)
        self._nonces[nonce] = (request.nonce, now + NONCE_LIFE)
        return wire.Challenged(nonce=nonce, proof=proof(self._secret, SERVER, request.nonce, nonce))

    def intercept_service(self, continuation: Callable[[Any], Any], details: grpc.HandlerCallDetails) -> Any:
        if details.method == DOOR or self._admits(details):
            return continuation(details)
        handler = continuation(details)
        return handler and _refusal(handler)

    def _admits(self, details: grpc.HandlerCallDetails) -> bool:
        metadata = {key: value for key, value in details.invocation_metadata if isinstance(value, bytes)}
        nonce, given = metadata.get(_NONCE, b""), metadata.get(_PROOF, b"")
        theirs, until = self._nonces.pop(nonce, (b"", 0.0))
        expected = proof(self._secret, CALLER, details.method.encode(), theirs, nonce)
        return hmac.compare_digest(given, expected) and until >= time.monotonic()


def _refusal(handler: Any) -> Any:
    """A handler of the same kind that lets nobody in."""

    def refuse(_: Any, context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "the secret is another one")

    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    return kinds[handler.request_streaming, handler.response_streaming](refuse)


def authenticate(channel: grpc.Channel, target: str, secret: str, method: str, timeout: float) -> Metadata:
    """Metadata for one call of `method`, after the server has proved itself.

    Raises ConfigError if its secret is another one, EngineError if it does not answer within `timeout` seconds.
    """
    mine = secrets.token_bytes(NONCE_BYTES)
    try:
        stub = DoorStub(channel)  # type: ignore[no-untyped-call]
        answer = stub.Challenge(wire.Nonce(nonce=mine), timeout=timeout, wait_for_ready=True)
    except grpc.RpcError as error:
        raise EngineError(f"{target} does not answer") from error
    if not hmac.compare_digest(answer.proof, proof(secret, SERVER, mine, answer.nonce)):
        raise ConfigError("--secret-file", f"is not the secret of {target}: give every machine the same")
    return (_NONCE, answer.nonce), (_PROOF, proof(secret, CALLER, method.encode(), mine, answer.nonce))
