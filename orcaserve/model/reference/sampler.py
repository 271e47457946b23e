"""Sampler: one token per request from the logits of an iteration, each request by its own settings.

The order of operations is that of transformers and vLLM:

    mask of a grammar, repetition penalty (prompt + output), presence and frequency penalties (output),
    logit bias, stop ids masked until min_tokens
                                      ->  greedy: the best token
                                      ->  temperature, top_k, top_p, min_p, then one draw

A draw takes one uniform number made of the request's seed and the token's index in the text, and looks it up in the
cumulative weights of the tokens that are left. So a token depends on the request alone: not on what else is in the
batch, and not on whether its text so far came in one iteration or in many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orcaserve.core.errors import InvalidRequest
from orcaserve.core.logprobs import TokenLogprobs
from orcaserve.core.sampling_params import SamplingParams
from orcaserve.model.reference.draw import draw, uniform

SECOND_CHOICE = 0x5EC0_1D00_C401_CE00  # makes other random numbers of a seed, for tokens that are chosen a second time


@dataclass(slots=True)
class _State:
    """What the sampler remembers of one request.

    n_text: tokens of the text so far. seen: its ids, each once, if repetition_penalty needs them.
    counts: how often each id was put out, if a presence or frequency penalty needs it.
    """

    params: SamplingParams
    stop_ids: frozenset[int]
    seed: int
    n_text: int
    n_output: int = 0
    checked: bool = False  # its ids lie in the vocabulary
    again: bool = False  # the next token was chosen before, and taken back
    seen: dict[int, None] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)

    @property
    def uniform(self) -> float:
        """The random number of the next token."""
        return uniform(self.seed ^ SECOND_CHOICE if self.again else self.seed, self.n_text)

    def append(self, token: int) -> None:
        self.n_text += 1
        self.n_output += 1
        self.again = False
        if self.params.repetition_penalty != 1:
            self.seen[token] = None
        if self.params.presence_penalty or self.params.frequency_penalty:
            self.counts[token] += 1


class Sampler:
    """Chooses tokens for requests that were admitted. Not thread-safe."""

    def __init__(self) -> None:
        self._states: dict[int, _State] = {}

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
        seen = dict.fromkeys(input_ids) if params.repetition_penalty != 1 else {}
        state = self._states[request_id] = _State(params, stop_ids, seed, len(input_ids), seen=seen)
        for token in output:
            state.append(token)

    def drop(self, request_ids: Iterable[int]) -> None:
        """Forget requests; unknown ones are no error."""
        for request_id in request_ids:
            self._states.pop(request_id, None)

    def choose_again(
        self,
        logits: Tensor,
        request_ids: Sequence[int],
        rows: Sequence[int],
        n_top: Mapping[int, int],
        masks: Mapping[int, NDArray[np.uint32]],
    ) -> tuple[list[int], dict[int, str], dict[int, TokenLogprobs]]:
        """The tokens that these requests got last were not to be: choose others, by other random numbers.

        logits: those of before. rows: which of them are the requests'. The rest is as in `sample_with_logprobs`. Raises
        ValueError for requests with penalties.
        """
        self._take_back(request_ids)
        return self.sample_with_logprobs(logits[list(rows)], request_ids, n_top, masks)

    def _take_back(self, request_ids: Sequence[int]) -> None:
        for request_id in request_ids:
            state, params = self._states[request_id], self._states[request_id].params
            if params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty:
                raise ValueError(f"no token can be taken back of request {request_id}")
            state.n_text -= 1
            state.n_output -= 1
            state.again = True

    @torch.inference_mode()
    def sample(
        self, logits: Tensor, request_ids: Sequence[int], masks: Mapping[int, NDArray[np.uint32]] | None = None
    ) -> tuple[list[int], dict[int, str]]:
        """logits [R, vocabulary] float32 -> (a token per request, request id -> why it cannot go on).

        Rows with a mask, a penalty, a bias or excluded stops are overwritten.

        The token of a request that cannot go on is 0 and means nothing.
        masks: request id -> the allowed tokens, [vocabulary / 32 rounded up] uint32, bit i % 32 of word i // 32 being
        token i. Requests without one may get any token.
        """
        states = [self._states[request_id] for request_id in request_ids]
        if masks:
            masks = {row: masks[id_] for row, id_ in enumerate(request_ids) if id_ in masks}
        tokens, failures = self._choose(logits, states, masks or {})
        return tokens, {request_ids[row]: text for row, text in failures.items()}

    @torch.inference_mode()
    def sample_with_logprobs(
        self,
        logits: Tensor,
        request_ids: Sequence[int],
        n_top: Mapping[int, int],
        masks: Mapping[int, NDArray[np.uint32]] | None = None,
    ) -> tuple[list[int], dict[int, str], dict[int, TokenLogprobs]]:
        """As `sample`, and log-probabilities of the requests of n_top: request id -> number of best tokens.

        A request that cannot go on has none.
        """
        rows = [row for row, request_id in enumerate(request_ids) if request_id in n_top]
        logprobs = torch.log_softmax(logits[rows], 1)
        tokens, failures = self.sample(logits, request_ids, masks)
        told = {}
        for own, row in zip(logprobs, rows, strict=True):
            request_id = request_ids[row]
            if request_id not in failures:
                told[request_id] = _describe(own, tokens[row], n_top[request_id])
        return tokens, failures, told

    @torch.inference_mode()
    def score(self, logits: Tensor, tokens: Sequence[int], n_top: Sequence[int]) -> list[TokenLogprobs | None]:
        """logits [rows, vocabulary] float32; a given token for each row -> its log-probabilities.

        n_top: best tokens of each. None for a row that holds what is no number.
        """
        logprobs = torch.log_softmax(logits, 1)
        usable = logits.isfinite().all(1).tolist()
        rows = zip(logprobs, tokens, n_top, usable, strict=True)
        return [_describe(own, token, n) if good else None for own, token, n, good in rows]

    def _choose(
        self, logits: Tensor, states: Sequence[_State], masks: Mapping[int, NDArray[np.uint32]]
    ) -> tuple[list[int], dict[int, str]]:
        """A token for each row, and rows that cannot go on. masks: by row."""
        tokens = [0] * len(states)
        failures = _unusable(logits, states)
        if masks:
            _apply_masks(logits, masks)
        _adjust(logits, [(row, state) for row, state in enumerate(states) if row not in failures])
        best, picks = logits.max(1)
        for row, top in enumerate(best.tolist()):
            if top == -torch.inf:
                failures.setdefault(row, "every token is excluded")
        drawn = [row for row, state in enumerate(states) if not state.params.greedy and row not in failures]
        if drawn:
            x = logits[drawn]
            x -= best[drawn, None]
            picks[drawn] = draw(x, [states[row].params for row in drawn], [states[row].uniform for row in drawn])
        for row, (state, pick) in enumerate(zip(states, picks.tolist(), strict=True)):
            if row not in failures:
                tokens[row] = pick
                state.append(pick)
        return tokens, failures


def _describe(logprobs: Tensor, token: int, n_top: int) -> TokenLogprobs:
    """logprobs: [vocabulary], of all tokens."""
    own = logprobs[token]
    values, ids = logprobs.topk(min(n_top, len(logprobs)))
    return TokenLogprobs(own.item(), 1 + int((logprobs > own).sum()), ids.tolist(), values.tolist())


def _unusable(logits: Tensor, states: Sequence[_State]) -> dict[int, str]:
    """Rows that cannot be sampled, and why."""
    failures: dict[int, str] = {}
    for row, total in enumerate(logits.sum(1).tolist()):  # one quick pass arouses suspicion, a second one makes sure
        if not abs(total) < torch.inf and not logits[row].isfinite().all():
            failures[row] = "the model's output is not a number"
    for row, state in enumerate(states):
        if not state.checked:
            try:
                state.params.check_vocabulary(logits.shape[1])
                state.checked = True
            except InvalidRequest as error:
                failures[row] = error.message
    return failures


def _apply_masks(logits: Tensor, masks: Mapping[int, NDArray[np.uint32]]) -> None:
    """masks: by row of the logits, at least one."""
    words = np.stack(list(masks.values()))
    allowed = np.unpackbits(words.view(np.uint8), axis=1, count=logits.shape[1], bitorder="little")
    excluded = torch.from_numpy(allowed == 0).to(logits.device)
    rows = torch.tensor(list(masks), device=logits.device)
    logits[rows] = logits[rows].masked_fill(excluded, -torch.inf)


class _Entries:
    """Places in the logits, each with a number."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self._columns: list[int] = []
        self._numbers: list[float] = []

    def add(self, row: int, columns: Iterable[int], numbers: Iterable[float]) -> None:
        self._columns.extend(columns)
        self._numbers.extend(numbers)
        self.rows.extend([row] * (len(self._columns) - len(self.rows)))

    def tensors(self, device: torch.device) -> tuple[tuple[Tensor, Tensor], Tensor]:
        places = torch.tensor(self.rows, device=device), torch.tensor(self._columns, device=device)
        return places, torch.tensor(self._numbers, dtype=torch.float32, device=device)


def _adjust(logits: Tensor, states: Sequence[tuple[int, _State]]) -> None:
    """Penalties, bias and masks, in place, for all rows at once."""
    repeated, added, masked = _Entries(), _Entries(), _Entries()
    for row, state in states:
        params = state.params
        repeated.add(row, state.seen, [params.repetition_penalty] * len(state.seen))
        penalties = [-params.presence_penalty - params.frequency_penalty * n for n in state.counts.values()]
        added.add(row, state.counts, penalties)
        added.add(row, params.logit_bias, params.logit_bias.values())
        if state.n_output < params.min_tokens:
            stops = [token for token in state.stop_ids if token < logits.shape[1]]
            masked.add(row, stops, [-torch.inf] * len(stops))
    if repeated.rows:
        places, penalty = repeated.tensors(logits.device)
        seen = logits[places]
        logits[places] = torch.where(seen > 0, seen / penalty, seen * penalty)
    if added.rows:
        places, numbers = added.tensors(logits.device)
        logits.index_put_(places, numbers, accumulate=True)
    if masked.rows:
        places, numbers = masked.tensors(logits.device)
        logits[places] = numbers
