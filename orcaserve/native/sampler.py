"""Sampler: one token per request from the logits of an iteration, each request by its own settings, in one native call.

It chooses as orcaserve.model.reference.sampler does, which says the order of operations, and can do more: masks of the
tokens that are allowed, and log-probabilities.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from orcaserve.core.errors import InvalidRequest
from orcaserve.core.logprobs import TokenLogprobs
from orcaserve.core.sampling_params import SamplingParams
from orcaserve.native import _kernels

_UINT64 = 2**64 - 1
_NOT_A_NUMBER, _ALL_EXCLUDED, _OUTSIDE_VOCABULARY = 1, 2, 3  # SampleOutcome of csrc/sampler.h

_SCORED = -1  # stands for a request where tokens are given: no request has this id

_T = TypeVar("_T")
Masks = Mapping[int, NDArray[np.uint32]]


class Sampler:
    """Chooses tokens for requests that were admitted. Not thread-safe."""

    def __init__(self, team: _kernels.Team) -> None:
        self._native = _kernels.Sampler(team)
        self._params: dict[int, SamplingParams] = {}
        self.admit(_SCORED, (0,), SamplingParams(temperature=0), frozenset(), 0)

    def admit(
        self,
        request_id: int,
        input_ids: Sequence[int],
        params: SamplingParams,
        stop_ids: frozenset[int],
        seed: int,
        output: Sequence[int] = (),
    ) -> None:
        """Take a request before its first `sample`.

        seed: 64 bits, what its draws are made of. output: what another sampler has put out for it; this one goes on.
        """
        named = max(params.logit_bias, default=-1), max(params.stop_token_ids, default=-1)
        self._native.admit(
            request_id,
            temperature=0.0 if params.greedy else params.temperature,
            top_k=max(params.top_k, 0),
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            bias_ids=list(params.logit_bias),
            bias=list(params.logit_bias.values()),
            min_tokens=params.min_tokens,
            stop_ids=sorted(stop_ids) if params.min_tokens else [],
            largest_id=max(named),
            seed=seed & _UINT64,
            n_prompt=len(input_ids),
            seen=input_ids if params.repetition_penalty != 1 else [],
            output=output,
        )
        self._params[request_id] = params

    def drop(self, request_ids: Iterable[int]) -> None:
        """Forget requests; unknown ones are no error."""
        ids = list(request_ids)
        self._native.drop(ids)
        for request_id in ids:
            self._params.pop(request_id, None)

    def sample(
        self, logits: NDArray[np.float32], request_ids: Sequence[int], masks: Masks | None = None
    ) -> tuple[list[int], dict[int, str]]:
        """logits [R, vocabulary] -> (a token per request, request id -> why it cannot go on).

        Rows with a mask, a penalty, a bias or excluded stops are overwritten.

        The token of a request that cannot go on is 0 and means nothing.
        masks: request id -> the allowed tokens, [vocabulary / 32 rounded up] uint32, bit i % 32 of word i // 32 being
        token i. Requests without one may get any token; masks of others than `request_ids` are not looked at.
        Raises KeyError for a request that was not admitted.
        """
        tokens, failures, _ = self.sample_with_logprobs(logits, request_ids, {}, masks)
        return tokens, failures

    def sample_with_logprobs(
        self,
        logits: NDArray[np.float32],
        request_ids: Sequence[int],
        n_top: Mapping[int, int],
        masks: Masks | None = None,
    ) -> tuple[list[int], dict[int, str], dict[int, TokenLogprobs]]:
        """As `sample`, and log-probabilities of the requests of n_top: request id -> number of best tokens, 0 to 20.

        A request that cannot go on has none.
        """
        return self._sample(logits, request_ids, (), n_top, masks)

    def choose_again(
        self,
        logits: NDArray[np.float32],
        request_ids: Sequence[int],
        rows: Sequence[int],
        n_top: Mapping[int, int],
        masks: Masks,
    ) -> tuple[list[int], dict[int, str], dict[int, TokenLogprobs]]:
        """The tokens that these requests got last were not to be: choose others, by other random numbers.

        logits: those of before. rows: which of them are the requests'; at least one. The rest is as in
        `sample_with_logprobs`. Raises ValueError for requests with penalties.
        """
        self._native.take_back(request_ids)
        return self._sample(logits, request_ids, rows, n_top, masks)

    def _sample(
        self,
        logits: NDArray[np.float32],
        request_ids: Sequence[int],
        rows: Sequence[int],
        n_top: Mapping[int, int],
        masks: Masks | None,
    ) -> tuple[list[int], dict[int, str], dict[int, TokenLogprobs]]:
        tokens, failures, described = self._native.sample(
            logits, request_ids, _placed(masks, request_ids), _placed(n_top, request_ids), rows
        )
        explained = {
            request_ids[place]: self._explain(outcome, request_ids[place], logits.shape[1])
            for place, outcome in failures
        }
        return tokens, explained, {request_ids[place]: TokenLogprobs(*rest) for place, *rest in described}

    def score(
        self, logits: NDArray[np.float32], tokens: Sequence[int], n_top: Sequence[int]
    ) -> list[TokenLogprobs | None]:
        """logits [rows, vocabulary], overwritten; a given token for each row -> its log-probabilities.

        n_top: best tokens of each, 0 to 20. None for a row that holds what is no number.
        """
        rows, ids = np.arange(len(tokens)), np.asarray(tokens)
        masks = np.zeros((len(tokens), -(-logits.shape[1] // 32)), np.uint32)  # a choice among one
        masks[rows, ids // 32] = np.uint32(1) << (ids % 32).astype(np.uint32)
        _, _, described = self._native.sample(
            logits, [_SCORED] * len(tokens), list(enumerate(masks)), list(enumerate(n_top)), []
        )
        scored: list[TokenLogprobs | None] = [None] * len(tokens)
        for row, *rest in described:
            scored[row] = TokenLogprobs(*rest)
        return scored

    def _explain(self, outcome: int, request_id: int, vocab_size: int) -> str:
        if outcome == _NOT_A_NUMBER:
            return "the model's output is not a number"
        if outcome == _ALL_EXCLUDED:
            return "every token is excluded"
        assert outcome == _OUTSIDE_VOCABULARY
        try:
            self._params[request_id].check_vocabulary(vocab_size)
        except InvalidRequest as error:
            return error.message
        raise AssertionError("the ids that a request names were found outside the vocabulary and inside it")


def _placed(values: Mapping[int, _T] | None, request_ids: Sequence[int]) -> list[tuple[int, _T]]:
    if not values:
        return []
    return [(place, values[request_id]) for place, request_id in enumerate(request_ids) if request_id in values]
