"""Scoring: log-probabilities of an iteration, of the tokens that it chooses and of those that a prompt has.

A prompt may have thousands of tokens, and each has as many logits as the vocabulary has tokens. So hidden states of the
rows are kept, and logits are made of some rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from orcaserve.core import BatchEntry, Logprobs, TokenLogprobs
from orcaserve.model.layout import Int32s, Layout
from orcaserve.worker.pooling import PooledRows

MOST_LOGITS = 2**23  # in memory at a time: 32 MiB
NOT_NUMBERS = "the model's output is not a number"


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Consecutive rows of the flat batch, from `first` on, whose logits are to say how likely `followers` are.

    n_top: best tokens to tell of each.
    """

    request_id: int
    first: int
    followers: Sequence[int]
    n_top: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an iteration is to tell. chosen: request id -> best tokens to tell beside the one that is chosen for it.

    pooled: hidden states that pools are to have.
    """

    chosen: Mapping[int, int] = field(default_factory=dict)
    prompts: Sequence[PromptRows] = ()
    pooled: Sequence[PooledRows] = ()

    @property
    def of_states(self) -> bool:
        """Whether hidden states are looked at beyond those that tokens are chosen from."""
        return bool(self.prompts or self.pooled)


NOTHING = Wanted()


class ScoringSampler(Protocol):
    """logits: an array or a tensor [rows, vocabulary]; they are overwritten."""

    def sample(self, logits: Any, request_ids: Sequence[int]) -> tuple[list[int], dict[int, str]]: ...
    def sample_with_logprobs(
        self, logits: Any, request_ids: Sequence[int], n_top: Mapping[int, int]
    ) -> tuple[list[int], dict[int, str], dict[int, TokenLogprobs]]: ...
    def score(self, logits: Any, tokens: Sequence[int], n_top: Sequence[int]) -> list[TokenLogprobs | None]:
        """Of a given token for each row; None where the logits are no numbers."""


def scored_rows(entries: Sequence[BatchEntry], layout: Layout) -> list[PromptRows]:
    """entries: those of the layout, in its order."""
    prompts = []
    for entry, first in zip(entries, layout.starts.tolist(), strict=False):
        if (scoring := entry.scoring) is not None:
            followers = list(entry.tokens[1:])
            if scoring.follower is not None:
                followers.append(scoring.follower)
            prompts.append(PromptRows(entry.request_id, first, followers, scoring.n_top))
    return prompts


def choose(
    sampler: ScoringSampler, logits: Any, request_ids: Sequence[int], wanted: Wanted
) -> tuple[Sequence[int], dict[int, str], dict[int, Logprobs]]:
    """A token for each request, from its row of the logits."""
    if not request_ids:
        return [], {}, {}
    if not wanted.chosen:
        return *sampler.sample(logits, request_ids), {}
    tokens, failures, told = sampler.sample_with_logprobs(logits, request_ids, wanted.chosen)
    return tokens, failures, {request_id: Logprobs(own) for request_id, own in told.items()}


def score_prompts(
    prompts: Sequence[PromptRows],
    vocab_size: int,
    logits_of: Callable[[Int32s], Any],
    sampler: ScoringSampler | None,
) -> tuple[dict[int, str], dict[int, list[TokenLogprobs]]]:
    """(request id -> why it cannot go on, request id -> of its followers). Nothing of no prompts.

    logits_of: rows of the flat batch -> their logits, or None if others have them: then there is no sampler, and the
    result is empty. It is called with the same rows by all workers of a stage.
    """
    if not prompts:
        return {}, {}
    owners = [(prompt, follower) for prompt in prompts for follower in prompt.followers]
    rows = np.concatenate([np.arange(p.first, p.first + len(p.followers), dtype=np.int32) for p in prompts])
    told: dict[int, list[TokenLogprobs]] = {prompt.request_id: [] for prompt in prompts}
    failures: dict[int, str] = {}
    n_most = max(MOST_LOGITS // vocab_size, 1)
    for begin in range(0, len(rows), n_most):
        some = owners[begin : begin + n_most]
        logits = logits_of(rows[begin : begin + n_most])
        if logits is None or sampler is None:
            continue
        scored = sampler.score(logits, [follower for _, follower in some], [prompt.n_top for prompt, _ in some])
        for (prompt, _), own in zip(some, scored, strict=True):
            if own is None:
                failures[prompt.request_id] = NOT_NUMBERS
            else:
                told[prompt.request_id].append(own)
    if sampler is None:
        return {}, {}
    return failures, told


def joined(
    chosen: tuple[Sequence[int], dict[int, str], dict[int, Logprobs]],
    scored: tuple[dict[int, str], dict[int, list[TokenLogprobs]]],
) -> tuple[Sequence[int], dict[int, str], Mapping[int, Logprobs]]:
    """What `choose` and `score_prompts` have given, as an iteration's outcome."""
    tokens, failures, logprobs = chosen
    failures = failures | scored[0]
    for request_id, prompt in scored[1].items():
        own = logprobs.get(request_id)
        logprobs[request_id] = Logprobs(None if own is None else own.token, prompt)
    return tokens, failures, {id_: own for id_, own in logprobs.items() if id_ not in failures}
