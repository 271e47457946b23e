"""How many replicas the tokens of a queue need. Ray Serve copies this module to its controller: it imports nothing."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

TOKENS, SLOTS = "orcaserve_tokens", "orcaserve_slots"  # what a replica reports


def replicas_for(tokens: Collection[float], slots: Collection[float], tokens_per_replica: int) -> int:
    """tokens: of each replica, prompt + max_tokens of its unfinished requests, running or waiting. slots: what each has
    room for. tokens_per_replica: how many one is to have; 0: as many as it has room for."""
    room = tokens_per_replica or (sum(slots) / len(slots) if slots else 0)
    return math.ceil(sum(tokens) / room) if room else 0


class TokensPolicy:
    """Ray Serve's policy: so many replicas that each has room for its share of all tokens.

    Limits and delays are those of the deployment's autoscaling_config, which Ray Serve applies to what this says.
    """

    def __init__(self, tokens_per_replica: int = 0) -> None:
        self._tokens_per_replica = tokens_per_replica

    def __call__(self, ctx: Any) -> tuple[int, dict[str, Any]]:
        reported = ctx.aggregated_metrics or {}
        tokens, slots = (list(reported.get(name, {}).values()) for name in (TOKENS, SLOTS))
        if not slots:
            return ctx.target_num_replicas, {}  # nobody has said anything yet
        return replicas_for(tokens, slots, self._tokens_per_replica), {}
