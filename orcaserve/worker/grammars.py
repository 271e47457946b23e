"""ConstrainedSampler: a sampler, and the grammars of those of its requests that have one.

    sample(logits, request_ids)   tokens that keep to the grammars
         |
    prepare()                     they are entered into their grammars, and masks of what may follow are computed, while
         |                        the scheduler takes the tokens and chooses the next batch
    begin(request_ids)            grammars of new requests are compiled, on a thread beside the forward pass
         |
    sample(logits, request_ids)

Most tokens that a model likes best are such as its grammar allows, and to ask a grammar for one token takes a fifth of
the time of a mask, or a hundredth. So where nothing else limits the choice (see `Followed.tries`), a token is chosen
among all, and only if the grammar does not take it a mask is computed and another one chosen. That is the best token
of those that are allowed, or a draw from them: who throws a die again until it shows less than five, or only once more
and then a die of four sides, gets each of the four as often.

Masks are not computed beside a forward pass: on a CPU its threads need the cores themselves, and wait for each other.
Grammars have been compiled once before, at the door, within the same limits. What goes wrong with a grammar is the
failure of its request alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from orcaserve.core import SamplingParams, TokenLogprobs
from orcaserve.model.encoder_decoder.spec import EncoderDecoderSpec
from orcaserve.model.spec import ModelSpec
from orcaserve.worker.backend import Remembers
from orcaserve.worker.matchers import Followed, Matchers

if TYPE_CHECKING:  # late: most workers never see a grammar
    from orcaserve.text.vocabulary import Vocabulary

Masks = Mapping[int, NDArray[np.uint32]]
Logits = TypeVar("Logits", contravariant=True)
Outcome = tuple[list[int], dict[int, str], dict[int, TokenLogprobs]]


class Samples(Remembers, Protocol[Logits]):
    """The sampler that is constrained."""

    def sample_with_logprobs(
        self,
        logits: Logits,
        request_ids: Sequence[int],
        n_top: Mapping[int, int],
        masks: Masks | None = None,
    ) -> Outcome: ...
    def choose_again(
        self, logits: Logits, request_ids: Sequence[int], rows: Sequence[int], n_top: Mapping[int, int], masks: Masks
    ) -> Outcome: ...
    def score(self, logits: Logits, tokens: Sequence[int], n_top: Sequence[int]) -> list[TokenLogprobs | None]: ...


def _leave_the_core() -> None:
    """The device executor, which starts this thread, has a core for itself: its own and those it starts go anywhere."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))


class ConstrainedSampler(Generic[Logits]):
    """Chooses tokens as the sampler within does, and for requests with a grammar only such as keep to it.

    A request whose grammar is at its end gets a token that ends it. Not thread-safe.
    """

    def __init__(self, sampler: Samples[Logits], read_vocabulary: Callable[[], Vocabulary]) -> None:
        """read_vocabulary: called once, when there is a first grammar. Raises ModelError if there is none."""
        self._sampler = sampler
        self._matchers = Matchers(read_vocabulary)
        self._followed: dict[int, Followed] = {}
        self._to_prepare: dict[int, Followed] = {}
        self._thread: ThreadPoolExecutor | None = None

    def admit(
        self,
        request_id: int,
        input_ids: Sequence[int],
        params: SamplingParams,
        stop_ids: frozenset[int],
        seed: int,
        output: Sequence[int] = (),
    ) -> None:
        """As the sampler's. The output of before is entered into the grammar again."""
        self._followed.pop(request_id, None)
        if params.grammar is not None:
            self._followed[request_id] = Followed(params.grammar, params, stop_ids, list(output), len(output))
            params = replace(params, min_tokens=0)  # the grammar goes before it
        self._sampler.admit(request_id, input_ids, params, stop_ids, seed, output)

    def drop(self, request_ids: Iterable[int]) -> None:
        """Forget requests; unknown ones are no error."""
        ids = list(request_ids)
        self._sampler.drop(ids)
        for request_id in ids:
            self._followed.pop(request_id, None)

    def prepare(self) -> None:
        """What was chosen was passed on: make ready what may follow. Whoever does not call it waits longer later."""
        if self._to_prepare:
            followed = [one for id_, one in self._to_prepare.items() if self._followed.get(id_) is one]
            self._to_prepare.clear()
            self._matchers.follow(followed)

    def begin(self, request_ids: Sequence[int]) -> None:
        """These requests are to be sampled next; returns at once."""
        if not self._followed:
            return
        known = (self._followed.get(request_id) for request_id in request_ids)
        new = [one for one in known if one is not None and not one.is_ready]
        if new:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "grammars", _leave_the_core)
            coming = self._thread.submit(self._matchers.follow, new)
            for one in new:
                one.coming = coming

    def sample(self, logits: Any, request_ids: Sequence[int]) -> tuple[list[int], dict[int, str]]:
        """As the sampler's, after `begin` with the same requests."""
        tokens, failures, _ = self.sample_with_logprobs(logits, request_ids, {})
        return tokens, failures

    def sample_with_logprobs(self, logits: Any, request_ids: Sequence[int], n_top: Mapping[int, int]) -> Outcome:
        """As the sampler's, after `begin` with the same requests."""
        if not self._followed:
            return self._sampler.sample_with_logprobs(logits, request_ids, n_top)
        masks = self._masks_of(request_ids)
        tokens, failures, told = self._sampler.sample_with_logprobs(logits, request_ids, n_top, masks)
        unsure: dict[int, Followed] = {}  # by row
        for row, (request_id, token) in enumerate(zip(request_ids, tokens, strict=True)):
            one = self._followed.get(request_id)
            if one is None or request_id in failures:
                continue
            if one.failure is not None:
                failures[request_id] = one.failure
            elif not one.tries:
                self._note(one, request_id, token)
            elif self._matchers.takes(one, token):
                self._note(one, request_id, token, entered=True)
            else:
                unsure[row] = one
        if unsure:
            self._decide(logits, request_ids, n_top, unsure, (tokens, failures, told))
        return tokens, failures, {request_id: own for request_id, own in told.items() if request_id not in failures}

    def score(self, logits: Logits, tokens: Sequence[int], n_top: Sequence[int]) -> list[TokenLogprobs | None]:
        """As the sampler's: a prompt may be anything."""
        return self._sampler.score(logits, tokens, n_top)

    def _masks_of(self, request_ids: Sequence[int]) -> Masks:
        """Waited for. Requests whose grammar has failed have none."""
        masks = {}
        for request_id in request_ids:
            one = self._followed.get(request_id)
            if one is None:
                continue
            if one.coming is not None:
                one.coming.result()
                one.coming = None
            if one.mask is not None:
                masks[request_id] = one.mask
                one.mask = None
            else:
                assert one.tries or one.failure is not None, "begun before it is sampled"
        return masks

    def _decide(
        self,
        logits: Any,
        request_ids: Sequence[int],
        n_top: Mapping[int, int],
        unsure: Mapping[int, Followed],
        outcome: Outcome,
    ) -> None:
        """Find out by masks which of these rows' tokens are allowed after all, and choose others for the rest.

        unsure: by row. outcome: of the first choice; becomes that of both.
        """
        tokens, failures, told = outcome
        self._matchers.fill(list(unsure.values()))
        refused = []
        for row, one in unsure.items():
            if one.failure is not None:
                failures[request_ids[row]] = one.failure
            elif not one.allows(tokens[row]):
                refused.append(row)
        if refused:
            ids = [request_ids[row] for row in refused]
            masks = {request_ids[row]: mask for row in refused if (mask := unsure[row].mask) is not None}
            chosen, failed, described = self._sampler.choose_again(logits, ids, refused, n_top, masks)
            failures |= failed
            told |= described
            for row, token in zip(refused, chosen, strict=True):
                tokens[row] = token
        for row, one in unsure.items():
            one.mask = None
            if request_ids[row] not in failures:
                self._note(one, request_ids[row], tokens[row])

    def _note(self, one: Followed, request_id: int, token: int, entered: bool = False) -> None:
        """What was chosen; entered: it is in the matcher."""
        one.n_output += 1
        if not entered:
            one.to_enter.append(token)
        if token not in one.stop_ids:
            self._to_prepare[request_id] = one


def vocabulary_of(path: Path, spec: ModelSpec | EncoderDecoderSpec) -> Callable[[], Vocabulary]:
    """Reads the model's own tokenizer, when it is called."""

    def read() -> Vocabulary:
        from orcaserve.text.tokenizer import Tokenizer

        return Tokenizer.from_path(path).vocabulary(spec.vocab_size, spec.eos_ids)

    return read
