"""TokenLogprobs: how likely the model itself thought one token. Logprobs: what an iteration tells of one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of the model's own distribution: the softmax of the logits before masks, penalties and temperature.

    logprob: of the chosen token, or of the prompt's. rank: 1 + the number of tokens that are likelier.
    top_ids, top_logprobs: of the best tokens, best first, as many as were asked for.
    """

    logprob: float
    rank: int
    top_ids: Sequence[int]
    top_logprobs: Sequence[float]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """What one iteration, or one Progress, tells of a request that asked for log-probabilities.

    token: of the token that was chosen; None if those of output were not asked for, or none was chosen.
    prompt: of prompt tokens from the second on (nothing is known before the first), if they were asked for: with the
    request's first news all of them, in an iteration's result those that follow the tokens it was fed.
    """

    token: TokenLogprobs | None = None
    prompt: Sequence[TokenLogprobs] = ()
