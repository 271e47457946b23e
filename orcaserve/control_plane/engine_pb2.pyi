from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Pooling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOLING_UNSPECIFIED: _ClassVar[Pooling]
    POOLING_MEAN: _ClassVar[Pooling]
    POOLING_LAST: _ClassVar[Pooling]

class GrammarKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GRAMMAR_KIND_UNSPECIFIED: _ClassVar[GrammarKind]
    GRAMMAR_KIND_JSON_SCHEMA: _ClassVar[GrammarKind]
    GRAMMAR_KIND_REGEX: _ClassVar[GrammarKind]
    GRAMMAR_KIND_LARK: _ClassVar[GrammarKind]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]
    FINISH_REASON_ERROR: _ClassVar[FinishReason]
POOLING_UNSPECIFIED: Pooling
POOLING_MEAN: Pooling
POOLING_LAST: Pooling
GRAMMAR_KIND_UNSPECIFIED: GrammarKind
GRAMMAR_KIND_JSON_SCHEMA: GrammarKind
GRAMMAR_KIND_REGEX: GrammarKind
GRAMMAR_KIND_LARK: GrammarKind
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CANCELLED: FinishReason
FINISH_REASON_ERROR: FinishReason

class ToEngine(_message.Message):
    __slots__ = ("submits", "cancels", "watch", "question", "loads", "unloads")
    SUBMITS_FIELD_NUMBER: _ClassVar[int]
    CANCELS_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    UNLOADS_FIELD_NUMBER: _ClassVar[int]
    submits: _containers.RepeatedCompositeFieldContainer[Submit]
    cancels: _containers.RepeatedScalarFieldContainer[int]
    watch: bool
    question: int
    loads: _containers.RepeatedCompositeFieldContainer[Adapter]
    unloads: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, submits: _Optional[_Iterable[_Union[Submit, _Mapping]]] = ..., cancels: _Optional[_Iterable[int]] = ..., watch: _Optional[bool] = ..., question: _Optional[int] = ..., loads: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ..., unloads: _Optional[_Iterable[int]] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("number", "name", "path", "digest")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    number: int
    name: str
    path: str
    digest: str
    def __init__(self, number: _Optional[int] = ..., name: _Optional[str] = ..., path: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class AdapterNews(_message.Message):
    __slots__ = ("number", "unloaded", "error")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    UNLOADED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    number: int
    unloaded: bool
    error: str
    def __init__(self, number: _Optional[int] = ..., unloaded: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("request_id", "input_ids", "stop_ids", "sampling", "seed", "output_ids", "terms", "adapter")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    input_ids: _containers.RepeatedScalarFieldContainer[int]
    stop_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    seed: int
    output_ids: _containers.RepeatedScalarFieldContainer[int]
    terms: Terms
    adapter: int
    def __init__(self, request_id: _Optional[int] = ..., input_ids: _Optional[_Iterable[int]] = ..., stop_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., seed: _Optional[int] = ..., output_ids: _Optional[_Iterable[int]] = ..., terms: _Optional[_Union[Terms, _Mapping]] = ..., adapter: _Optional[int] = ...) -> None: ...

class Terms(_message.Message):
    __slots__ = ("client", "weight", "priority", "background", "cache_salt", "timeout", "first_token", "between_tokens")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BETWEEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    client: str
    weight: float
    priority: int
    background: bool
    cache_salt: str
    timeout: float
    first_token: float
    between_tokens: float
    def __init__(self, client: _Optional[str] = ..., weight: _Optional[float] = ..., priority: _Optional[int] = ..., background: _Optional[bool] = ..., cache_salt: _Optional[str] = ..., timeout: _Optional[float] = ..., first_token: _Optional[float] = ..., between_tokens: _Optional[float] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs", "prompt_logprobs", "grammar", "ignore_eos", "pooling")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    logprobs: int
    prompt_logprobs: int
    grammar: Grammar
    ignore_eos: bool
    pooling: Pooling
    def __init__(self, max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., grammar: _Optional[_Union[Grammar, _Mapping]] = ..., ignore_eos: _Optional[bool] = ..., pooling: _Optional[_Union[Pooling, str]] = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("kind", "text")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: GrammarKind
    text: str
    def __init__(self, kind: _Optional[_Union[GrammarKind, str]] = ..., text: _Optional[str] = ...) -> None: ...

class FromEngine(_message.Message):
    __slots__ = ("facts", "report", "failure", "heartbeat", "schedule_lines", "live", "adapter")
    FACTS_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_LINES_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    facts: Facts
    report: IterationReport
    failure: Failure
    heartbeat: Heartbeat
    schedule_lines: bytes
    live: LiveRequests
    adapter: AdapterNews
    def __init__(self, facts: _Optional[_Union[Facts, _Mapping]] = ..., report: _Optional[_Union[IterationReport, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., schedule_lines: _Optional[bytes] = ..., live: _Optional[_Union[LiveRequests, _Mapping]] = ..., adapter: _Optional[_Union[AdapterNews, _Mapping]] = ...) -> None: ...

class LiveRequests(_message.Message):
    __slots__ = ("question", "requests", "n_left_out")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    N_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    question: int
    requests: _containers.RepeatedCompositeFieldContainer[LiveRequest]
    n_left_out: int
    def __init__(self, question: _Optional[int] = ..., requests: _Optional[_Iterable[_Union[LiveRequest, _Mapping]]] = ..., n_left_out: _Optional[int] = ...) -> None: ...

class LiveRequest(_message.Message):
    __slots__ = ("request_id", "state", "age", "n_input", "n_output", "n_reserved", "n_used", "why_waiting")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    N_INPUT_FIELD_NUMBER: _ClassVar[int]
    N_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    N_RESERVED_FIELD_NUMBER: _ClassVar[int]
    N_USED_FIELD_NUMBER: _ClassVar[int]
    WHY_WAITING_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    state: str
    age: float
    n_input: int
    n_output: int
    n_reserved: int
    n_used: int
    why_waiting: str
    def __init__(self, request_id: _Optional[int] = ..., state: _Optional[str] = ..., age: _Optional[float] = ..., n_input: _Optional[int] = ..., n_output: _Optional[int] = ..., n_reserved: _Optional[int] = ..., n_used: _Optional[int] = ..., why_waiting: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Facts(_message.Message):
    __slots__ = ("model_name", "vocab_size", "context_length", "n_slots", "max_bs", "n_workers", "eos_ids", "window", "embedding_size", "source")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    N_SLOTS_FIELD_NUMBER: _ClassVar[int]
    MAX_BS_FIELD_NUMBER: _ClassVar[int]
    N_WORKERS_FIELD_NUMBER: _ClassVar[int]
    EOS_IDS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_SIZE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    vocab_size: int
    context_length: int
    n_slots: int
    max_bs: int
    n_workers: int
    eos_ids: _containers.RepeatedScalarFieldContainer[int]
    window: int
    embedding_size: int
    source: Source
    def __init__(self, model_name: _Optional[str] = ..., vocab_size: _Optional[int] = ..., context_length: _Optional[int] = ..., n_slots: _Optional[int] = ..., max_bs: _Optional[int] = ..., n_workers: _Optional[int] = ..., eos_ids: _Optional[_Iterable[int]] = ..., window: _Optional[int] = ..., embedding_size: _Optional[int] = ..., source: _Optional[_Union[Source, _Mapping]] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("longest", "start", "page_size")
    LONGEST_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    longest: int
    start: int
    page_size: int
    def __init__(self, longest: _Optional[int] = ..., start: _Optional[int] = ..., page_size: _Optional[int] = ...) -> None: ...

class IterationReport(_message.Message):
    __slots__ = ("request_ids", "tokens", "ended_rows", "finish_reasons", "errors", "status", "logprobs", "began", "embeddings")
    class ErrorsEntry(_message.Message):
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
        value: Logprobs
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[Logprobs, _Mapping]] = ...) -> None: ...
    class BeganEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: Began
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[Began, _Mapping]] = ...) -> None: ...
    class EmbeddingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: bytes
        def __init__(self, key: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENDED_ROWS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASONS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    BEGAN_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    ended_rows: _containers.RepeatedScalarFieldContainer[int]
    finish_reasons: _containers.RepeatedScalarFieldContainer[FinishReason]
    errors: _containers.ScalarMap[int, str]
    status: Status
    logprobs: _containers.MessageMap[int, Logprobs]
    began: _containers.MessageMap[int, Began]
    embeddings: _containers.ScalarMap[int, bytes]
    def __init__(self, request_ids: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., ended_rows: _Optional[_Iterable[int]] = ..., finish_reasons: _Optional[_Iterable[_Union[FinishReason, str]]] = ..., errors: _Optional[_Mapping[int, str]] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., logprobs: _Optional[_Mapping[int, Logprobs]] = ..., began: _Optional[_Mapping[int, Began]] = ..., embeddings: _Optional[_Mapping[int, bytes]] = ...) -> None: ...

class Began(_message.Message):
    __slots__ = ("waited", "n_cached")
    WAITED_FIELD_NUMBER: _ClassVar[int]
    N_CACHED_FIELD_NUMBER: _ClassVar[int]
    waited: float
    n_cached: int
    def __init__(self, waited: _Optional[float] = ..., n_cached: _Optional[int] = ...) -> None: ...

class Logprobs(_message.Message):
    __slots__ = ("token", "prompt")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    token: TokenLogprobs
    prompt: TokenLogprobs
    def __init__(self, token: _Optional[_Union[TokenLogprobs, _Mapping]] = ..., prompt: _Optional[_Union[TokenLogprobs, _Mapping]] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("logprobs", "ranks", "n_top", "top_ids", "top_logprobs")
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    N_TOP_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    n_top: _containers.RepeatedScalarFieldContainer[int]
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprobs: _Optional[_Iterable[float]] = ..., ranks: _Optional[_Iterable[int]] = ..., n_top: _Optional[_Iterable[int]] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("iteration", "n_running", "n_waiting", "n_live", "n_reserved", "n_used", "batch_tokens", "batch_initiations", "iteration_seconds", "scheduler_seconds", "n_preempted", "n_recomputed", "n_waiting_tokens", "n_cached", "n_kept", "n_late")
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    N_RUNNING_FIELD_NUMBER: _ClassVar[int]
    N_WAITING_FIELD_NUMBER: _ClassVar[int]
    N_LIVE_FIELD_NUMBER: _ClassVar[int]
    N_RESERVED_FIELD_NUMBER: _ClassVar[int]
    N_USED_FIELD_NUMBER: _ClassVar[int]
    BATCH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BATCH_INITIATIONS_FIELD_NUMBER: _ClassVar[int]
    ITERATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    N_PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    N_RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    N_WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    N_CACHED_FIELD_NUMBER: _ClassVar[int]
    N_KEPT_FIELD_NUMBER: _ClassVar[int]
    N_LATE_FIELD_NUMBER: _ClassVar[int]
    iteration: int
    n_running: int
    n_waiting: int
    n_live: int
    n_reserved: int
    n_used: int
    batch_tokens: int
    batch_initiations: int
    iteration_seconds: float
    scheduler_seconds: float
    n_preempted: int
    n_recomputed: int
    n_waiting_tokens: int
    n_cached: int
    n_kept: int
    n_late: int
    def __init__(self, iteration: _Optional[int] = ..., n_running: _Optional[int] = ..., n_waiting: _Optional[int] = ..., n_live: _Optional[int] = ..., n_reserved: _Optional[int] = ..., n_used: _Optional[int] = ..., batch_tokens: _Optional[int] = ..., batch_initiations: _Optional[int] = ..., iteration_seconds: _Optional[float] = ..., scheduler_seconds: _Optional[float] = ..., n_preempted: _Optional[int] = ..., n_recomputed: _Optional[int] = ..., n_waiting_tokens: _Optional[int] = ..., n_cached: _Optional[int] = ..., n_kept: _Optional[int] = ..., n_late: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...
