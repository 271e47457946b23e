"""Mutual TLS between machines: each side shows a certificate of one authority, made out to one name for all machines.

The name is not the host's: addresses are chosen late, and what matters is not which machine calls, but that it is one
of the engine's. A certificate that the same authority made out to others opens nothing.

gRPC tells a caller whose handshake fails no more than that nobody answers, and tries again. So before a first call the
caller meets the other side by hand, and says what does not fit.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from orcaserve.core import ConfigError, EngineError
from orcaserve.core.tls import TlsFiles

NAME = "orcaserve"  # subjectAltName = DNS:orcaserve
PAUSE = 0.2  # s before another try to connect
MANY = 3  # connections closed without a word, one after the other: then it is no server that just ended
# What begins a connection of HTTP/2, with its empty settings. gRPC answers it with its own; TLS with an alert.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_ALERT = b"\x15"  # first byte of one


class Tls:
    """This machine's part of it. Raises ConfigError if the files would not convince another machine that has them."""

    def __init__(self, files: TlsFiles) -> None:
        self._pems = {flag: _read(flag, path) for flag, path in _by_flag(files).items()}
        if files.key.stat().st_mode & 0o077:
            raise ConfigError("--tls-key", f"{files.key} is open to other users: chmod 600 {files.key}")
        self._files = files
        self.check()

    def server_credentials(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials(
            [(self._pems["--tls-key"], self._pems["--tls-cert"])], self._pems["--tls-ca"], require_client_auth=True
        )

    def channel(self, target: str, options: list[tuple[str, Any]]) -> grpc.Channel:
        credentials = grpc.ssl_channel_credentials(
            self._pems["--tls-ca"], self._pems["--tls-key"], self._pems["--tls-cert"]
        )
        return grpc.secure_channel(target, credentials, [*options, ("grpc.ssl_target_name_override", NAME)])

    def context(self, protocol: ssl._SSLMethod) -> ssl.SSLContext:
        """Of either side, for the library's own TLS."""
        context = ssl.SSLContext(protocol)
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["h2"])
        try:
            context.load_verify_locations(self._files.ca)
        except ssl.SSLError as error:
            raise ConfigError("--tls-ca", f"{self._files.ca} holds no certificate") from error
        try:
            context.load_cert_chain(self._files.cert, self._files.key, password=lambda: "")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ConfigError("--tls-key", f"{self._files.key} is not the key of {self._files.cert}") from error
            raise ConfigError(
                "--tls-cert", f"{self._files.cert} and --tls-key are no certificate and key without a password"
            ) from error
        return context

    def check(self) -> None:
        """Be both sides of a handshake, in memory: what fails here would fail with every other machine.

        Raises ConfigError.
        """
        to_server, to_caller = ssl.MemoryBIO(), ssl.MemoryBIO()
        caller = self.context(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(to_caller, to_server, server_hostname=NAME)
        server = self.context(ssl.PROTOCOL_TLS_SERVER).wrap_bio(to_server, to_caller, server_side=True)
        done = 0
        while done < 2:
            done = 0
            for side in (caller, server):
                try:
                    side.do_handshake()
                    done += 1
                except ssl.SSLWantReadError:
                    continue
                except ssl.SSLCertVerificationError as error:
                    raise ConfigError("--tls-cert", f"{self._files.cert} {_words(error)}") from error


class Members(grpc.ServerInterceptor):
    """Lets calls through whose caller has shown a certificate that is made out to NAME."""

    def intercept_service(self, continuation: Callable[[Any], Any], details: grpc.HandlerCallDetails) -> Any:
        handler = continuation(details)
        if handler is None:
            return None
        ways: dict[tuple[bool, bool], tuple[Callable[..., Any], Callable[..., Any]]] = {
            (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary),
            (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream),
            (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary),
            (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream),
        }
        make, behaviour = ways[handler.request_streaming, handler.response_streaming]

        def guarded(request: Any, context: grpc.ServicerContext) -> Any:
            if NAME.encode() not in context.auth_context().get("x509_subject_alternative_name", ()):
                context.abort(grpc.StatusCode.PERMISSION_DENIED, f"the certificate is not made out to {NAME}")
            return behaviour(request, context)

        return make(guarded, handler.request_deserializer, handler.response_serializer)


def meet(host: str, port: int, tls: Tls | None, timeout: float) -> None:
    """See whether the server there and this machine speak alike, and take each other's certificates.

    It has `timeout` seconds to come and to answer. Raises ConfigError, which says what to change, or EngineError.
    """
    where, deadline, n_closed = f"{host}:{port}", time.monotonic() + timeout, 0
    while True:
        left = max(deadline - time.monotonic(), 0.05)
        try:
            with socket.create_connection((host, port), left) as raw:
                raw.settimeout(left)
                if _greet(raw, where, tls):
                    return
            n_closed += 1
            if tls is None and _speaks_tls(host, port, left):
                raise ConfigError("--tls-cert", f"{where} speaks TLS: give --tls-cert, --tls-key and --tls-ca")
            if tls is not None and n_closed == MANY:
                tls.check()  # it may have expired meanwhile
                raise ConfigError("--tls-cert", f"{where} does not take it: its --tls-ca is of another authority")
        except OSError as error:
            n_closed = 0
            if time.monotonic() + PAUSE > deadline:
                raise EngineError(f"{where} does not answer") from error
        time.sleep(PAUSE)


def _greet(raw: socket.socket, where: str, tls: Tls | None) -> bool:
    """Whether it has an answer, or closes without a word: as gRPC does with whom it does not take, and whoever ends.

    Raises ConfigError if its certificate is no good, or it speaks no TLS; OSError.
    """
    try:
        if tls is None:
            raw.sendall(_PREFACE)
            return raw.recv(1) not in (b"", _ALERT)
        with tls.context(ssl.PROTOCOL_TLS_CLIENT).wrap_socket(raw, server_hostname=NAME) as secure:
            secure.sendall(_PREFACE)
            return secure.recv(1) != b""  # the server looks at our certificate only now
    except ssl.SSLCertVerificationError as error:
        raise ConfigError("--tls-ca", f"the certificate of {where} {_words(error)}") from error
    except (ssl.SSLEOFError, ConnectionResetError):
        return False
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            return False
        words = "speaks no TLS: give its server the same three flags, or leave them out here"
        raise ConfigError("--tls-cert", f"{where} {words}") from error


def _speaks_tls(host: str, port: int, timeout: float) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, port), timeout) as raw:
        try:
            with context.wrap_socket(raw):
                return True
        except ssl.SSLError as error:
            return "ALERT" in (error.reason or "")


def _words(error: ssl.SSLCertVerificationError) -> str:
    """Behind the name of a certificate."""
    message = error.verify_message
    if "ostname mismatch" in message:
        return f"is not made out to the name {NAME}: its subjectAltName must hold DNS:{NAME}"
    if "expired" in message:
        return "has expired"
    if "not yet valid" in message:
        return "is not valid yet: look at the clocks"
    if "issuer" in message or "self-signed" in message or "self signed" in message:
        return "is not of the authority in --tls-ca"
    return f"is not accepted: {message}"


def _by_flag(files: TlsFiles) -> dict[str, Path]:
    return {"--tls-cert": files.cert, "--tls-key": files.key, "--tls-ca": files.ca}


def _read(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(flag, f"{path} cannot be read: {error.strerror}") from error
