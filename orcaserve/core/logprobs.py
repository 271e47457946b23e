"""TokenLogprobs: how likely the model itself thought one token."""

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
