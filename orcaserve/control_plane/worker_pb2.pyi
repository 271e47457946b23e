from orcaserve.control_plane import engine_pb2 as _engine_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ToWorker(_message.Message):
    __slots__ = ("start", "iteration", "clock", "load", "unload")
    START_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    UNLOAD_FIELD_NUMBER: _ClassVar[int]
    start: Start
    iteration: Iteration
    clock: ClockQuestion
    load: _engine_pb2.Adapter
    unload: int
    def __init__(self, start: _Optional[_Union[Start, _Mapping]] = ..., iteration: _Optional[_Union[Iteration, _Mapping]] = ..., clock: _Optional[_Union[ClockQuestion, _Mapping]] = ..., load: _Optional[_Union[_engine_pb2.Adapter, _Mapping]] = ..., unload: _Optional[int] = ...) -> None: ...

class ClockQuestion(_message.Message):
    __slots__ = ("sent",)
    SENT_FIELD_NUMBER: _ClassVar[int]
    sent: int
    def __init__(self, sent: _Optional[int] = ...) -> None: ...

class ClockAnswer(_message.Message):
    __slots__ = ("sent", "received", "replied")
    SENT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    REPLIED_FIELD_NUMBER: _ClassVar[int]
    sent: int
    received: int
    replied: int
    def __init__(self, sent: _Optional[int] = ..., received: _Optional[int] = ..., replied: _Optional[int] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("n_slots", "next", "rendezvous")
    N_SLOTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    n_slots: int
    next: str
    rendezvous: str
    def __init__(self, n_slots: _Optional[int] = ..., next: _Optional[str] = ..., rendezvous: _Optional[str] = ...) -> None: ...

class Iteration(_message.Message):
    __slots__ = ("number", "request_ids", "lengths", "positions", "tokens", "admissions", "drops", "pieces", "scorings", "prefixes", "kept", "evicted", "adapted")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADMISSIONS_FIELD_NUMBER: _ClassVar[int]
    DROPS_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    SCORINGS_FIELD_NUMBER: _ClassVar[int]
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    ADAPTED_FIELD_NUMBER: _ClassVar[int]
    number: int
    request_ids: _containers.RepeatedScalarFieldContainer[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    admissions: _containers.RepeatedCompositeFieldContainer[Admission]
    drops: _containers.RepeatedScalarFieldContainer[int]
    pieces: _containers.RepeatedCompositeFieldContainer[Piece]
    scorings: _containers.RepeatedCompositeFieldContainer[Scoring]
    prefixes: _containers.RepeatedCompositeFieldContainer[Prefix]
    kept: _containers.RepeatedCompositeFieldContainer[Kept]
    evicted: _containers.RepeatedScalarFieldContainer[int]
    adapted: _containers.RepeatedCompositeFieldContainer[Adapted]
    def __init__(self, number: _Optional[int] = ..., request_ids: _Optional[_Iterable[int]] = ..., lengths: _Optional[_Iterable[int]] = ..., positions: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., admissions: _Optional[_Iterable[_Union[Admission, _Mapping]]] = ..., drops: _Optional[_Iterable[int]] = ..., pieces: _Optional[_Iterable[_Union[Piece, _Mapping]]] = ..., scorings: _Optional[_Iterable[_Union[Scoring, _Mapping]]] = ..., prefixes: _Optional[_Iterable[_Union[Prefix, _Mapping]]] = ..., kept: _Optional[_Iterable[_Union[Kept, _Mapping]]] = ..., evicted: _Optional[_Iterable[int]] = ..., adapted: _Optional[_Iterable[_Union[Adapted, _Mapping]]] = ...) -> None: ...

class Adapted(_message.Message):
    __slots__ = ("row", "adapter")
    ROW_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    row: int
    adapter: int
    def __init__(self, row: _Optional[int] = ..., adapter: _Optional[int] = ...) -> None: ...

class Prefix(_message.Message):
    __slots__ = ("row", "blocks", "copied", "n_copied", "tokens")
    ROW_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    N_COPIED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    row: int
    blocks: _containers.RepeatedScalarFieldContainer[int]
    copied: int
    n_copied: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, row: _Optional[int] = ..., blocks: _Optional[_Iterable[int]] = ..., copied: _Optional[int] = ..., n_copied: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class Kept(_message.Message):
    __slots__ = ("request_id", "first_page", "first_block", "n")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_PAGE_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    first_page: int
    first_block: int
    n: int
    def __init__(self, request_id: _Optional[int] = ..., first_page: _Optional[int] = ..., first_block: _Optional[int] = ..., n: _Optional[int] = ...) -> None: ...

class Scoring(_message.Message):
    __slots__ = ("row", "n_top", "follower")
    ROW_FIELD_NUMBER: _ClassVar[int]
    N_TOP_FIELD_NUMBER: _ClassVar[int]
    FOLLOWER_FIELD_NUMBER: _ClassVar[int]
    row: int
    n_top: int
    follower: int
    def __init__(self, row: _Optional[int] = ..., n_top: _Optional[int] = ..., follower: _Optional[int] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("row", "n_to_come", "pooling")
    ROW_FIELD_NUMBER: _ClassVar[int]
    N_TO_COME_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    row: int
    n_to_come: int
    pooling: _engine_pb2.Pooling
    def __init__(self, row: _Optional[int] = ..., n_to_come: _Optional[int] = ..., pooling: _Optional[_Union[_engine_pb2.Pooling, str]] = ...) -> None: ...

class Admission(_message.Message):
    __slots__ = ("row", "sampling", "stop_ids", "seed", "n_output")
    ROW_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    N_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    row: int
    sampling: _engine_pb2.Sampling
    stop_ids: _containers.RepeatedScalarFieldContainer[int]
    seed: int
    n_output: int
    def __init__(self, row: _Optional[int] = ..., sampling: _Optional[_Union[_engine_pb2.Sampling, _Mapping]] = ..., stop_ids: _Optional[_Iterable[int]] = ..., seed: _Optional[int] = ..., n_output: _Optional[int] = ...) -> None: ...

class Forwarded(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FromWorker(_message.Message):
    __slots__ = ("loaded", "ready", "result", "spans", "failure", "beat", "clock", "part", "adapter")
    LOADED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    loaded: Loaded
    ready: Ready
    result: Result
    spans: Spans
    failure: WorkerFailure
    beat: Beat
    clock: ClockAnswer
    part: ResultPart
    adapter: _engine_pb2.AdapterNews
    def __init__(self, loaded: _Optional[_Union[Loaded, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., result: _Optional[_Union[Result, _Mapping]] = ..., spans: _Optional[_Union[Spans, _Mapping]] = ..., failure: _Optional[_Union[WorkerFailure, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ..., clock: _Optional[_Union[ClockAnswer, _Mapping]] = ..., part: _Optional[_Union[ResultPart, _Mapping]] = ..., adapter: _Optional[_Union[_engine_pb2.AdapterNews, _Mapping]] = ...) -> None: ...

class Loaded(_message.Message):
    __slots__ = ("version", "slot_bytes", "free_bytes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    version: str
    slot_bytes: int
    free_bytes: int
    def __init__(self, version: _Optional[str] = ..., slot_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Beat(_message.Message):
    __slots__ = ("busy", "n_run", "progress", "waits_for")
    BUSY_FIELD_NUMBER: _ClassVar[int]
    N_RUN_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    busy: bool
    n_run: int
    progress: int
    waits_for: str
    def __init__(self, busy: _Optional[bool] = ..., n_run: _Optional[int] = ..., progress: _Optional[int] = ..., waits_for: _Optional[str] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("iteration", "tokens", "failures", "seconds", "logprobs", "embeddings")
    class FailuresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    class LogprobsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: _engine_pb2.Logprobs
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[_engine_pb2.Logprobs, _Mapping]] = ...) -> None: ...
    class EmbeddingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: bytes
        def __init__(self, key: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    iteration: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    failures: _containers.ScalarMap[int, str]
    seconds: float
    logprobs: _containers.MessageMap[int, _engine_pb2.Logprobs]
    embeddings: _containers.ScalarMap[int, bytes]
    def __init__(self, iteration: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., failures: _Optional[_Mapping[int, str]] = ..., seconds: _Optional[float] = ..., logprobs: _Optional[_Mapping[int, _engine_pb2.Logprobs]] = ..., embeddings: _Optional[_Mapping[int, bytes]] = ...) -> None: ...

class ResultPart(_message.Message):
    __slots__ = ("logprobs", "embeddings")
    class LogprobsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: _engine_pb2.Logprobs
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[_engine_pb2.Logprobs, _Mapping]] = ...) -> None: ...
    class EmbeddingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: bytes
        def __init__(self, key: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    logprobs: _containers.MessageMap[int, _engine_pb2.Logprobs]
    embeddings: _containers.ScalarMap[int, bytes]
    def __init__(self, logprobs: _Optional[_Mapping[int, _engine_pb2.Logprobs]] = ..., embeddings: _Optional[_Mapping[int, bytes]] = ...) -> None: ...

class Spans(_message.Message):
    __slots__ = ("iteration", "n_requests", "n_tokens", "names", "starts", "ends")
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    N_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    N_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    iteration: int
    n_requests: int
    n_tokens: int
    names: _containers.RepeatedScalarFieldContainer[str]
    starts: _containers.RepeatedScalarFieldContainer[int]
    ends: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, iteration: _Optional[int] = ..., n_requests: _Optional[int] = ..., n_tokens: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., starts: _Optional[_Iterable[int]] = ..., ends: _Optional[_Iterable[int]] = ...) -> None: ...

class WorkerFailure(_message.Message):
    __slots__ = ("kind", "name", "message")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    message: str
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
