"""SamplingParams: how one request wants its tokens chosen, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from orcaserve.core.errors import InvalidRequest
from orcaserve.core.grammar import Grammar
from orcaserve.core.logprobs import MAX_TOP_LOGPROBS
from orcaserve.core.pooling import Pooling

MAX_STOPS = 4
MAX_STOP_LENGTH = 1024  # characters of one stop string
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_CHOICES = 128
MAX_TOKENS_LIMIT = 2**31 - 1
MAX_TOKEN_ID = 2**31 - 1
GREEDY_BELOW = 1e-4  # temperatures under this are the limit T -> 0


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling settings of one request; checked on construction, so an instance is always valid.

    Raises InvalidRequest naming the field. Numbers are checked as closed intervals, and NaN is in none of them.
    `max_tokens` here is the OpenAI field: the most tokens to GENERATE; with 0 the prompt is only read, and scored if
    prompt_logprobs asks for it, or pooled if pooling does. The paper's `max_tokens` (input + output) is
    `Request.max_tokens`. `stop` and `n` are served at the edge: the engine sees one choice, and ids only.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 and -1: no limit
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None  # of each chosen token, and of so many best ones
    prompt_logprobs: int | None = None  # the same of the prompt's tokens
    grammar: Grammar | None = None
    pooling: Pooling | None = None  # no text is wanted but one vector, made of the prompt's hidden states

    def __post_init__(self) -> None:
        self._normalise_collections()
        _check_int("max_tokens", self.max_tokens, 0, MAX_TOKENS_LIMIT)
        _check_int("min_tokens", self.min_tokens, 0, self.max_tokens)
        _check_int("top_k", self.top_k, -1, MAX_TOKEN_ID)
        _check_int("n", self.n, 1, MAX_CHOICES)
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise InvalidRequest("grammar", "grammar must be a Grammar", code="invalid_type")
        if self.pooling is not None:
            if not isinstance(self.pooling, Pooling):
                raise InvalidRequest("pooling", "pooling must be a Pooling", code="invalid_type")
            if self.max_tokens:
                raise InvalidRequest("max_tokens", "max_tokens must be 0 with pooling: no token is generated")
        if self.seed is not None:
            _check_int("seed", self.seed, -(2**63), 2**63 - 1)
        _check_number("temperature", self.temperature, 0.0, 2.0)
        _check_number("top_p", self.top_p, 0.0, 1.0)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_number("repetition_penalty", self.repetition_penalty, 0.01, 10.0)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), 0, MAX_TOP_LOGPROBS)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(name, f"{name} must be true or false", code="invalid_type")
        if len(self.stop) > MAX_STOPS:
            raise InvalidRequest("stop", f"stop takes at most {MAX_STOPS} strings")
        for text in self.stop:
            if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_LENGTH:
                raise InvalidRequest("stop", f"each stop must be a string of 1 to {MAX_STOP_LENGTH} characters")
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequest("stop_token_ids", f"stop_token_ids takes at most {MAX_STOP_TOKEN_IDS} ids")
        for token in self.stop_token_ids:
            _check_int("stop_token_ids", token, 0, MAX_TOKEN_ID)
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidRequest("logit_bias", f"logit_bias takes at most {MAX_LOGIT_BIAS} entries")
        for token, bias in self.logit_bias.items():
            _check_int("logit_bias", token, 0, MAX_TOKEN_ID)
            _check_number("logit_bias", bias, -100.0, 100.0)

    def _normalise_collections(self) -> None:
        """Accept what users naturally pass (one stop string, a list of ids) and store one immutable form."""
        stop: object = self.stop
        if stop is None:
            object.__setattr__(self, "stop", ())
        elif isinstance(stop, str):
            object.__setattr__(self, "stop", (stop,))
        elif isinstance(stop, Iterable):
            object.__setattr__(self, "stop", tuple(stop))
        else:
            raise InvalidRequest("stop", "stop must be a string or a list of strings", code="invalid_type")
        ids: object = self.stop_token_ids
        if not isinstance(ids, Iterable) or isinstance(ids, str | bytes):
            raise InvalidRequest("stop_token_ids", "stop_token_ids must be a list of token ids", code="invalid_type")
        ids = tuple(ids)
        for token in ids:
            _check_int("stop_token_ids", token, 0, MAX_TOKEN_ID)
        object.__setattr__(self, "stop_token_ids", frozenset(ids))
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidRequest("logit_bias", "logit_bias must map token ids to numbers", code="invalid_type")
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))  # the caller's may change after the check

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise InvalidRequest if an id named here lies outside 0..vocab_size-1."""
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            if any(token >= vocab_size for token in ids):
                raise InvalidRequest(name, f"{name} holds a token id outside 0..{vocab_size - 1}")


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(name, f"{name} must be an integer", code="invalid_type")
    if not low <= value <= high:
        raise InvalidRequest(name, f"{name} must be an integer from {low} to {high}")


def _check_number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(name, f"{name} must be a number", code="invalid_type")
    if not (low <= value <= high and math.isfinite(value)):
        raise InvalidRequest(name, f"{name} must be a finite number from {low:g} to {high:g}")
