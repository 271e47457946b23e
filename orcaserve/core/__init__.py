"""The vocabulary every other part speaks. Standard library only."""

from orcaserve.core.adapter import AdapterAnswer, AdapterSource
from orcaserve.core.admission import check_request, fan_out
from orcaserve.core.batch import Batch, BatchEntry, Increment, IterationResult, Kept, Prefix, Scoring
from orcaserve.core.engine import (
    Engine,
    EngineEvent,
    EngineFacts,
    EngineFailure,
    EngineStatus,
    IterationReport,
    SourceFacts,
)
from orcaserve.core.errors import (
    CannotFit,
    CheckpointError,
    ConfigError,
    EngineError,
    InvalidRequest,
    ModelError,
    ModelNotFound,
    NoRoom,
    OrcaServeError,
    UnsupportedModel,
)
from orcaserve.core.grammar import Grammar, GrammarKind
from orcaserve.core.logprobs import Logprobs, TokenLogprobs
from orcaserve.core.pooling import Pooling
from orcaserve.core.request import Began, FinishReason, Phase, Progress, Request, RequestState
from orcaserve.core.sampling_params import SamplingParams
from orcaserve.core.terms import USUAL, Terms
from orcaserve.core.watching import LiveRequest, LiveRequests, LiveState, Sink

__all__ = [
    "USUAL",
    "AdapterAnswer",
    "AdapterSource",
    "Batch",
    "BatchEntry",
    "Began",
    "CannotFit",
    "CheckpointError",
    "ConfigError",
    "Engine",
    "EngineError",
    "EngineEvent",
    "EngineFacts",
    "EngineFailure",
    "EngineStatus",
    "FinishReason",
    "Grammar",
    "GrammarKind",
    "Increment",
    "InvalidRequest",
    "IterationReport",
    "IterationResult",
    "Kept",
    "LiveRequest",
    "LiveRequests",
    "LiveState",
    "Logprobs",
    "ModelError",
    "ModelNotFound",
    "NoRoom",
    "OrcaServeError",
    "Phase",
    "Pooling",
    "Prefix",
    "Progress",
    "Request",
    "RequestState",
    "SamplingParams",
    "Scoring",
    "Sink",
    "SourceFacts",
    "Terms",
    "TokenLogprobs",
    "UnsupportedModel",
    "check_request",
    "fan_out",
]
