"""The error tree. Whatever leaves this package is one of these; foreign errors are translated at the border they cross.

    OrcaServeError
      ConfigError               a flag, environment variable or config value is wrong      -> exit code 2
      InvalidRequest            a field of a request is wrong; names the field              -> HTTP 4xx
        CannotFit               prompt + output exceed the context or all K/V slots         -> HTTP 400
      ModelError                the model cannot be had
        ModelNotFound           no such file, folder or hub name, or no way to reach it
        CheckpointError         the files are damaged, or disagree with each other
        UnsupportedModel        a whole checkpoint of a kind this version cannot run
      EngineError               the engine process is gone, or its iteration raised         -> HTTP 5xx
        NoRoom                  the system has no room now for what an engine needs to start

`assert` is for our own mistakes; exceptions are for the world's.
"""

from __future__ import annotations

ENGINE_LOST = "the engine stopped before this request was finished"  # what clients are told; the cause is in the log
CRASHED_TWICE = "the engine crashed twice while it ran this request, which is not run again"
SERVER_STOPPING = "the server is stopping"  # likewise, when it was told to end
TIMED_OUT = "the request was not finished within its timeout"
TOO_LATE = "the request could not make its deadline any more, and was not begun"


class OrcaServeError(Exception):
    """Root of every error that orcaserve raises on purpose."""


class ConfigError(OrcaServeError):
    """A setting is wrong. `name` is the setting as the user wrote it (for example `--n-slots`)."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class InvalidRequest(OrcaServeError):
    """A request's field is wrong. `field` is the field's name on the wire, `message` states the limit.

    `message` is shown to clients: it never repeats what the client sent.
    """

    def __init__(self, field: str | None, message: str, code: str = "invalid_value", status: int = 400) -> None:
        super().__init__(message)
        self.field = field
        self.message = message
        self.code = code
        self.status = status


class CannotFit(InvalidRequest):
    """The request could never run: it needs more tokens than the context or the whole K/V region holds."""

    def __init__(self, field: str | None, message: str) -> None:
        super().__init__(field, message, code="context_length_exceeded")


class ModelError(OrcaServeError):
    """A model cannot be had."""


class ModelNotFound(ModelError):
    """No such file, folder or hub name; or the hub cannot be reached."""


class CheckpointError(ModelError):
    """A checkpoint is damaged or contradicts itself: missing, short, duplicate or unknown tensors, wrong sizes."""


class UnsupportedModel(ModelError):
    """The checkpoint is whole, but of a kind this version does not run. The message names what is supported."""


class EngineError(OrcaServeError):
    """The engine is gone or an iteration raised; what was running has ended."""


class NoRoom(EngineError):
    """The system has no room (on a disk, for processes) for what an engine needs to start; there may be some later."""
