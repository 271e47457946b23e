"""Request: a client's unit of work, from arrival to its last token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from orcaserve.core.logprobs import Logprobs
from orcaserve.core.sampling_params import SamplingParams
from orcaserve.core.terms import USUAL, Terms


class Phase(Enum):
    """What an iteration does for a request."""

    INITIATION = "initiation"  # its first iteration: all input tokens at once (others say prefill)
    INCREMENT = "increment"  # every later one: one token in, one token out (others say decode)


class RequestState(Enum):
    """The states of Algorithm 1, and the one after it."""

    INITIATION = "initiation"  # waits for its first batch, or to start anew; nothing reserved
    RUNNING = "running"  # in a batch that is in flight
    FEEDING = "feeding"  # its initiation comes in pieces: has K/V of some of its input, waits for its next batch
    INCREMENT = "increment"  # has K/V, waits for its next batch
    FINISHED = "finished"  # reported; no longer in the pool


class FinishReason(Enum):
    STOP = "stop"  # a stop id, or a stop string seen by the endpoint
    LENGTH = "length"  # as many tokens as were asked for
    CANCELLED = "cancelled"  # the client left or asked for it
    ERROR = "error"  # the request, or the engine under it, failed


@dataclass(frozen=True, slots=True)
class Began:
    """What became of a request until its first batch. waited: seconds since it arrived at the scheduler; n_cached: of
    its input tokens, those whose keys and values were there already.
    """

    waited: float
    n_cached: int = 0


@dataclass(slots=True)
class Progress:
    """News of one request: a token, its end, or both.

    token: the new token, or None if it ended without one (cancelled, refused, engine lost).
    error: text for finish_reason ERROR, fit to show to a client.
    logprobs: of the token, and with the first news of the prompt's, if the request asked for them.
    embedding: with the end of a request that asked for it: its pooled hidden states, float32, little-endian.
    began: with the first news of a request that was in a batch. Two Progresses are equal whatever it says.
    """

    request_id: int
    token: int | None
    finish_reason: FinishReason | None = None
    error: str | None = None
    logprobs: Logprobs | None = None
    began: Began | None = field(default=None, compare=False)
    embedding: bytes | None = None


@dataclass(eq=False, slots=True)
class Request:
    """One live request. The scheduler changes `output`, `n_pieces`, `state`, `cancelled` (of the endpoint's own copy
    the supervisor does) and `ending`; nobody else.

    input_ids: the prompt, at least one token id.
    stop_ids: ids that end the request when generated (empty if it ignores them).
    seed: what its draws are made of, together with their positions; nothing below the door is random.
    terms: what selection may look at beside sizes.
    adapter: the number of what it adds to the model's weights; 0: nothing. A number never stands for two things.
    arrival: seconds on the loop's clock; set when the scheduler adds it.
    output: tokens it was given so far. Those it is made with were put out by an engine that is gone: it goes on from
    there, and n_carried says how many they are.
    n_pieces: iterations that have fed it input and given it no token.
    most_output: tokens that it may have at most; of its params, where it is at hand in every iteration.
    ending: its last news, while a policy holds them back and has the request computed on.
    """

    id: int
    input_ids: Sequence[int]
    params: SamplingParams
    stop_ids: frozenset[int] = frozenset()
    seed: int = 0
    arrival: float = 0.0
    terms: Terms = USUAL
    adapter: int = 0
    output: list[int] = field(default_factory=list)
    n_pieces: int = 0
    state: RequestState = RequestState.INITIATION
    cancelled: bool = False
    ending: Progress | None = None
    n_carried: int = field(init=False)
    most_output: int = field(init=False)

    def __post_init__(self) -> None:
        assert len(self.input_ids) > 0, "a request has at least one input token"
        self.n_carried = len(self.output)
        self.most_output = self.params.max_tokens

    @property
    def n_input(self) -> int:
        return len(self.input_ids)

    @property
    def max_tokens(self) -> int:
        """The paper's max_tokens: input tokens + the most tokens it may generate = slots to reserve."""
        return len(self.input_ids) + self.most_output

    @property
    def n_iterations(self) -> int:
        """Iterations that have given it a token on this engine."""
        return len(self.output) - self.n_carried

    def finish_reason_after(self, token: int) -> FinishReason | None:
        """Why the request ends once `token` is its newest output, or None. Call after appending the token."""
        # A grammar may end before min_tokens; as long as it does not have to, no stop id is chosen.
        may_end = len(self.output) > self.params.min_tokens or self.params.grammar is not None
        if token in self.stop_ids and may_end:
            return FinishReason.STOP
        if len(self.output) >= self.most_output:
            return FinishReason.LENGTH
        return None
