"""Batch and IterationResult: what goes into one iteration of the model, and what comes back.

Nothing here is changed once it is made. What is made in every iteration is not frozen all the same: Python makes frozen
objects four times as slowly, and the device waits meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orcaserve.core.logprobs import Logprobs
from orcaserve.core.pooling import Pooling
from orcaserve.core.request import Phase
from orcaserve.core.sampling_params import SamplingParams

_INITIATION = Phase.INITIATION  # at hand: looking a member up in its class takes Python 3.11 as long as a call


@dataclass(frozen=True, slots=True)
class Scoring:
    """Of an initiation's tokens: the log-probabilities of the prompt tokens that follow them are wanted.

    n_top: best tokens to tell of each. follower: the prompt token after the entry's last one, if it has another piece.
    """

    n_top: int
    follower: int | None = None


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a request has before its first iteration: keys and values that others have made.

    blocks: its page table begins with the pages of these, which it never writes to. copied: the block whose first
    n_copied tokens are copied to a page of its own, before anything of the iteration is run; 0: none.
    tokens: what the tokens are, all that precede the entry's.
    """

    blocks: Sequence[int]
    tokens: Sequence[int]
    copied: int = 0
    n_copied: int = 0


@dataclass(slots=True)
class Kept:
    """Pages of a request that are full once the iteration has run: they become blocks, which others may share.

    n pages of its page table, from first_page on; the blocks' ids are first_block and those that follow.
    twin: for who keeps the record: the page after them holds what this block of somebody else holds, so neither it nor
    any later page of the request becomes a block. 0: none.
    """

    request_id: int
    first_page: int
    first_block: int
    n: int
    twin: int = 0


@dataclass(slots=True)
class BatchEntry:
    """One request's part of an iteration.

    tokens: the input tokens of this iteration: the whole prompt or a piece of it, or the newest token.
    position: token index of tokens[0] = number of tokens whose K/V the request already has.
    params, stop_ids, seed: sent with the last piece of the initiation; the worker keeps them until the request is
    dropped.
    n_output: how many tokens of an initiation, at its end, were put out before, by an engine that is gone or before the
    request was preempted. Their K/V is made anew. Told with the last piece.
    n_to_come: input tokens of the initiation that later iterations bring. Until then no token is chosen: that of the
    result means nothing.
    scoring: what is wanted of the prompt's tokens, if anything.
    pooling: no token is chosen, the initiation's hidden states are pooled: told with each of its pieces.
    prefix: what it has at `position` without having computed it; with its first entry only.
    adapter: with every entry of an initiation; the worker keeps it too. See Request.
    """

    request_id: int
    phase: Phase
    tokens: Sequence[int]
    position: int
    params: SamplingParams | None = None
    stop_ids: frozenset[int] = frozenset()
    seed: int = 0
    n_output: int = 0
    n_to_come: int = 0
    scoring: Scoring | None = None
    prefix: Prefix | None = None
    pooling: Pooling | None = None
    adapter: int = 0

    def __post_init__(self) -> None:
        assert (self.params is not None) == (self.phase is _INITIATION and not self.n_to_come)
        n = len(self.tokens)
        assert n and self.position + n > self.n_output
        assert self.prefix is None or self.position == len(self.prefix.tokens)


class Increment(BatchEntry):
    """The entry of a request in its increment phase: one token in. Most entries are such, and made in no time."""

    __slots__ = ()
    phase = Phase.INCREMENT
    params = None
    stop_ids: frozenset[int] = frozenset()
    seed = 0
    n_output = 0
    n_to_come = 0
    scoring = None
    prefix = None
    pooling = None
    adapter = 0

    def __init__(self, request_id: int, token: int, position: int) -> None:
        self.request_id = request_id
        self.tokens = (token,)
        self.position = position


@dataclass(slots=True)
class Batch:
    """One iteration's work, in the order in which the policy chose it. Never empty.

    drops: requests whose K/V is to be released BEFORE the entries are run: freed memory precedes its new owner.
    evicted: blocks that go then too, after the drops. kept: pages that become blocks; entries that follow that of their
    request may have them in their prefix.
    """

    iteration: int
    entries: tuple[BatchEntry, ...]
    drops: tuple[int, ...] = ()
    kept: tuple[Kept, ...] = ()
    evicted: tuple[int, ...] = ()

    @property
    def n_tokens(self) -> int:
        return sum([len(entry.tokens) for entry in self.entries])


@dataclass(frozen=True, slots=True)
class IterationResult:
    """One token per entry of the batch, in the batch's order.

    failures: request id -> why that request alone could not go on (its token is meaningless).
    seconds: time the device spent on it.
    logprobs: request id -> what is told of its tokens, for those that asked for it and have not failed.
    embeddings: request id -> its pooled hidden states, float32, little-endian, for those that asked for them, whose
    initiation ends here, and that have not failed.
    """

    iteration: int
    tokens: Sequence[int]
    failures: Mapping[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    logprobs: Mapping[int, Logprobs] = field(default_factory=dict)
    embeddings: Mapping[int, bytes] = field(default_factory=dict)
