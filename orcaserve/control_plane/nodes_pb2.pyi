from orcaserve.control_plane import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Nonce(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class Challenged(_message.Message):
    __slots__ = ("nonce", "proof")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    proof: bytes
    def __init__(self, nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...

class FromNode(_message.Message):
    __slots__ = ("hello", "started", "ended")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    started: Started
    ended: Ended
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "name", "address", "rank", "model", "fingerprint")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    version: str
    name: str
    address: str
    rank: int
    model: str
    fingerprint: str
    def __init__(self, version: _Optional[str] = ..., name: _Optional[str] = ..., address: _Optional[str] = ..., rank: _Optional[int] = ..., model: _Optional[str] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class ToNode(_message.Message):
    __slots__ = ("assignment", "refused", "goodbye")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    assignment: Assignment
    refused: _worker_pb2.WorkerFailure
    goodbye: Goodbye
    def __init__(self, assignment: _Optional[_Union[Assignment, _Mapping]] = ..., refused: _Optional[_Union[_worker_pb2.WorkerFailure, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("places", "config")
    PLACES_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    places: _containers.RepeatedCompositeFieldContainer[Position]
    config: str
    def __init__(self, places: _Optional[_Iterable[_Union[Position, _Mapping]]] = ..., config: _Optional[str] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("stage", "shard")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    stage: int
    shard: int
    def __init__(self, stage: _Optional[int] = ..., shard: _Optional[int] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("workers", "store")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[StartedWorker]
    store: int
    def __init__(self, workers: _Optional[_Iterable[_Union[StartedWorker, _Mapping]]] = ..., store: _Optional[int] = ...) -> None: ...

class StartedWorker(_message.Message):
    __slots__ = ("port", "pid")
    PORT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    port: int
    pid: int
    def __init__(self, port: _Optional[int] = ..., pid: _Optional[int] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("place", "code")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    place: Position
    code: int
    def __init__(self, place: _Optional[_Union[Position, _Mapping]] = ..., code: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
