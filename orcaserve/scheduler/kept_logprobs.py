"""KeptLogprobs: log-probabilities that come before the news they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orcaserve.core import Batch, FinishReason, Logprobs, Progress, TokenLogprobs


class KeptLogprobs:
    """Of prompts that are fed in pieces, until the first token is there; of tokens that a policy holds back, until they
    are told. Empty as long as nobody asks for log-probabilities.
    """

    def __init__(self) -> None:
        self._prompts: dict[int, list[TokenLogprobs]] = {}
        self._held: dict[int, list[Logprobs | None]] = {}

    def take_in(self, batch: Batch, logprobs: Mapping[int, Logprobs]) -> Mapping[int, Logprobs]:
        """What an iteration has told -> what belongs to its news. What it told of pieces is kept."""
        told: dict[int, Logprobs] = {}
        for entry in batch.entries:
            own = logprobs.get(entry.request_id)
            if entry.n_to_come:
                if own is not None:
                    self._prompts.setdefault(entry.request_id, []).extend(own.prompt)
                continue
            before = self._prompts.pop(entry.request_id, None)
            if before is not None:  # the last piece may have nothing to tell
                own = Logprobs(None, before) if own is None else Logprobs(own.token, [*before, *own.prompt])
            if own is not None:
                told[entry.request_id] = own
        return told

    @property
    def waits(self) -> bool:
        """Whether something is kept for the first news of a request."""
        return bool(self._prompts)

    def hold(self, request_id: int, logprobs: Logprobs | None) -> None:
        """Of the newest token of a request that does not end with it."""
        self._held.setdefault(request_id, []).append(logprobs)

    def held(self, request_id: int) -> Sequence[Logprobs | None]:
        """Of its tokens, in order; empty if there is nothing to tell of any."""
        return self._held.get(request_id, ())

    def forget(self, request_id: int) -> None:
        """It has left, or starts anew. Idempotent."""
        self._prompts.pop(request_id, None)
        self._held.pop(request_id, None)


def describe(news: Sequence[Progress], told: Mapping[int, Logprobs]) -> None:
    """Put to an iteration's news what was told of its requests. Who failed or has left is told nothing."""
    for each in news:
        own = told.get(each.request_id)
        if own is None:
            continue
        if each.token is not None:
            each.logprobs = own
        elif each.finish_reason is FinishReason.LENGTH:  # it asked for no token
            each.logprobs = Logprobs(None, own.prompt)
