"""ConstrainedSampler: a sampler, and the grammars of those of its requests that have one.

    sample(logits, request_ids)   tokens that keep to the grammars
         |
    prepare()                     they are entered into their grammars, and masks of what may follow are computed, while
         |                        the scheduler takes the tokens and chooses the next batch
    begin(request_ids)            grammars of new requests are compiled, on a thread beside the forward pass
         |
    sample(logits, request_ids)

Most tokens that a model likes best are such as its grammar allows, and to ask a grammar for one token takes a fifth of
the time of a mask, or a hundredth. So where nothing else limits the choice (see `_Followed.tries`), a token is chosen
among all, and only if the grammar does not take it a mask is computed and another one chosen. That is the best token
of those that are allowed, or a draw from them: who throws a die again until it shows less than five, or only once more
and then a die of four sides, gets each of the four as often.

Masks are not computed beside a forward pass: on a CPU its threads need the cores themselves, and wait for each other.
Grammars have been compiled once before, at the door, within the same limits. What goes wrong with a grammar is the
failure of its request alone.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from orcaserve.core import Grammar, InvalidRequest, ModelError, SamplingParams, TokenLogprobs
from orcaserve.model.encoder_decoder.spec import EncoderDecoderSpec
from orcaserve.model.spec import ModelSpec
from orcaserve.worker.backend import Remembers
from orcaserve.worker.resources import available_cores

if TYPE_CHECKING:  # late: most workers never see a grammar
    from llguidance import LLExecutor, LLMatcher

    from orcaserve.text.compiler import Compiler
    from orcaserve.text.vocabulary import Vocabulary

Masks = Mapping[int, NDArray[np.uint32]]
Logits = TypeVar("Logits", contravariant=True)

MAX_COMPILED = 32  # grammars whose beginnings are kept
MAX_COMPILED_CHARACTERS = 2**18  # of their texts
MAX_THREADS = 8  # that compute masks
MOST_ALONE = 0.001  # s of masks for which one thread does: to wake more takes as long as the masks

_log = logging.getLogger(__name__)


class Samples(Remembers, Protocol[Logits]):
    """The sampler that is constrained."""

    def sample_with_logprobs(
        self, logits: Logits, request_ids: Sequence[int], n_top: Mapping[int, int], masks: Masks | None = None
    ) -> tuple[list[int], dict[int, str], dict[int, TokenLogprobs]]: ...
    def take_back(self, request_ids: Sequence[int]) -> None: ...
    def score(self, logits: Logits, tokens: Sequence[int], n_top: Sequence[int]) -> list[TokenLogprobs | None]: ...


@dataclass(slots=True)
class _Followed:
    """A request's way through its grammar.

    to_enter: tokens that were put out and are not in the matcher yet. n_output: how many were put out.
    failure: why it cannot go on. mask: of the next token, if it is known and the request can go on. coming: it is being
    found out on the thread. entered: the token just chosen is in the matcher.
    """

    grammar: Grammar
    params: SamplingParams
    stop_ids: frozenset[int]
    to_enter: list[int]
    n_output: int
    matcher: LLMatcher | None = None
    failure: str | None = None
    mask: NDArray[np.uint32] | None = None
    coming: Future[None] | None = None
    entered: bool = False

    @property
    def is_ready(self) -> bool:
        """For the choice of its next token."""
        if self.failure is not None or self.mask is not None:
            return True
        return self.tries and self.matcher is not None and not self.to_enter

    @property
    def tries(self) -> bool:
        """Whether its tokens are chosen without a mask first."""
        params = self.params
        whole = params.greedy or (params.top_k <= 0 and params.top_p >= 1 and params.min_p <= 0)
        penalties = params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty
        return whole and not penalties and not params.logit_bias

    def unwelcome(self, eos_ids: frozenset[int]) -> frozenset[int]:
        """Ids that end the text and are not to come next while there is another way on."""
        stops = self.stop_ids if self.n_output < self.params.min_tokens else frozenset[int]()
        return stops | eos_ids if self.params.ignore_eos else stops


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
        self._grammars = _Grammars(read_vocabulary)
        self._followed: dict[int, _Followed] = {}
        self._to_prepare: dict[int, _Followed] = {}
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
            self._followed[request_id] = _Followed(params.grammar, params, stop_ids, list(output), len(output))
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
            self._grammars.follow(followed)

    def begin(self, request_ids: Sequence[int]) -> None:
        """These requests are to be sampled next; returns at once."""
        if not self._followed:
            return
        known = (self._followed.get(request_id) for request_id in request_ids)
        new = [one for one in known if one is not None and not one.is_ready]
        if new:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "grammars", _leave_the_core)
            coming = self._thread.submit(self._grammars.follow, new)
            for one in new:
                one.coming = coming

    def sample(self, logits: Any, request_ids: Sequence[int]) -> tuple[list[int], dict[int, str]]:
        """As the sampler's, after `begin` with the same requests."""
        tokens, failures, _ = self.sample_with_logprobs(logits, request_ids, {})
        return tokens, failures

    def sample_with_logprobs(
        self, logits: Any, request_ids: Sequence[int], n_top: Mapping[int, int]
    ) -> tuple[list[int], dict[int, str], dict[int, TokenLogprobs]]:
        """As the sampler's, after `begin` with the same requests."""
        masks = self._masks_of(request_ids)
        tokens, failures, told = self._sampler.sample_with_logprobs(logits, request_ids, n_top, masks)
        if refused := self._refused(request_ids, tokens, failures):
            ids = [request_ids[row] for row in refused]
            self._sampler.take_back(ids)
            again = self._sampler.sample_with_logprobs(logits[refused], ids, n_top, self._masks_of(ids))
            for row, token in zip(refused, again[0], strict=True):
                tokens[row] = token
            failures |= again[1]
            told |= again[2]
        self._note(request_ids, tokens, failures)
        return tokens, failures, {request_id: own for request_id, own in told.items() if request_id not in failures}

    def score(self, logits: Logits, tokens: Sequence[int], n_top: Sequence[int]) -> list[TokenLogprobs | None]:
        """As the sampler's: a prompt may be anything."""
        return self._sampler.score(logits, tokens, n_top)

    def _masks_of(self, request_ids: Sequence[int]) -> Masks | None:
        """Waited for. Requests whose grammar has failed have none."""
        if not self._followed:
            return None
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

    def _refused(self, request_ids: Sequence[int], tokens: Sequence[int], failures: Mapping[int, str]) -> list[int]:
        """Rows whose tokens were chosen without a mask, and are not allowed; those have a mask afterwards."""
        unsure = {}
        for row, request_id in enumerate(request_ids) if self._followed else ():
            one = self._followed.get(request_id)
            if one is not None and one.tries and one.failure is None and request_id not in failures:
                one.entered = self._grammars.takes(one, tokens[row])
                if not one.entered:
                    unsure[row] = one
        if unsure:
            self._grammars.fill(list(unsure.values()))
        refused = []
        for row, one in unsure.items():
            if one.mask is not None and _allows(one.mask, tokens[row]):
                one.mask = None
            elif one.mask is not None:
                refused.append(row)
        return refused

    def _note(self, request_ids: Sequence[int], tokens: Sequence[int], failures: dict[int, str]) -> None:
        """What was chosen; of those whose grammar has failed, that it has."""
        if not self._followed:
            return
        for request_id, token in zip(request_ids, tokens, strict=True):
            one = self._followed.get(request_id)
            if one is None:
                continue
            if one.failure is not None:
                failures[request_id] = one.failure
            elif request_id not in failures:
                one.n_output += 1
                if one.entered:
                    one.entered = False
                    continue
                one.to_enter.append(token)
                if token not in one.stop_ids:
                    self._to_prepare[request_id] = one


class _Grammars:
    """Everything with a matcher. Called by one thread at a time; it is begun with by one that may use all cores."""

    def __init__(self, read_vocabulary: Callable[[], Vocabulary]) -> None:
        self._read_vocabulary = read_vocabulary
        self._compiler: Compiler | None = None
        self._executors: dict[int, LLExecutor] = {}  # number of threads -> those
        self._seconds = 0.0  # of one thread for one mask, the last time
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()  # the one used last at the end

    def follow(self, followed: Sequence[_Followed]) -> None:
        """Enter what was chosen, and set the failures of those that cannot go on, and the masks of those that need one
        in any case."""
        for one in followed:
            if one.matcher is None and one.failure is None:
                self._start(one)
        going = [one for one in followed if one.failure is None]
        if not going:
            return
        self._enter(going)
        self.fill([one for one in going if one.failure is None and not one.tries])

    def takes(self, one: _Followed, token: int) -> bool:
        """Enters the token if it may come next; no, too, if that cannot be told but by a mask."""
        assert self._compiler is not None and one.matcher is not None
        if token in one.stop_ids or token in self._compiler.vocabulary.eos_ids:
            return False
        return one.matcher.try_consume_tokens([token]) == 1

    def fill(self, followed: Sequence[_Followed]) -> None:
        """Set each one's mask of what may come next, or its failure."""
        if not followed:
            return
        assert self._compiler is not None
        rows = self._masks([one.matcher for one in followed])
        for one, row in zip(followed, rows, strict=True):
            self._look_at(one)
            if one.failure is None:
                _hold_back(row, one.unwelcome(self._compiler.vocabulary.eos_ids))
                one.mask = row

    def _start(self, one: _Followed) -> None:
        try:
            one.matcher = self._begun(one.grammar).deep_copy()
        except InvalidRequest as error:
            one.failure = error.message
        except (ModelError, ValueError) as error:
            _log.warning("a grammar cannot be followed: %s", error)
            one.failure = "this model cannot follow grammars: it has no tokenizer, or no token that ends a text"

    def _begun(self, grammar: Grammar) -> LLMatcher:
        """Of this grammar, at its beginning."""
        if self._compiler is None:
            from llguidance import LLExecutor

            from orcaserve.text.compiler import Compiler

            self._compiler = Compiler(self._read_vocabulary())
            self._executors = {n: LLExecutor(n) for n in (1, min(available_cores(), MAX_THREADS))}
        known = self._compiled.pop(grammar, None)
        matcher = self._compiler.compile(grammar) if known is None else known
        self._compiled[grammar] = matcher
        while len(self._compiled) > MAX_COMPILED or sum(len(g.text) for g in self._compiled) > MAX_COMPILED_CHARACTERS:
            self._compiled.popitem(last=False)
        return matcher

    def _enter(self, followed: Sequence[_Followed]) -> None:
        """The tokens that were chosen. One that ends a text is none of it."""
        assert self._compiler is not None
        eos_ids = self._compiler.vocabulary.eos_ids
        for one in followed:
            assert one.matcher is not None
            tokens = [token for token in one.to_enter if token not in eos_ids]
            one.to_enter.clear()
            if tokens:
                one.matcher.consume_tokens(tokens)
                self._look_at(one)

    def _look_at(self, one: _Followed) -> None:
        from orcaserve.text.compiler import failure_of

        assert one.matcher is not None
        if one.matcher.is_error():
            one.failure = failure_of(one.matcher)

    def _masks(self, matchers: Sequence[Any]) -> NDArray[np.uint32]:
        """[len(matchers), vocabulary / 32 rounded up]; where the text may end, all ids that end it are allowed."""
        assert self._compiler is not None
        vocabulary = self._compiler.vocabulary
        n, width = len(matchers), -(-len(vocabulary.texts) // 32)
        rows = np.empty((n, width), np.uint32)
        indexed = [(matcher, row) for row, matcher in enumerate(matchers)]
        n_threads = 1 if n * self._seconds < MOST_ALONE else max(self._executors)
        started = time.perf_counter()
        self._executors[n_threads].unsafe_compute_mask_ptr(indexed, rows.ctypes.data, 4 * width, n)
        self._seconds = (time.perf_counter() - started) * n_threads / n
        eos = self._compiler.eos_id
        may_end = (rows[:, eos // 32] >> np.uint32(eos % 32)) & np.uint32(1)
        for other in vocabulary.eos_ids - {eos}:
            rows[:, other // 32] |= may_end << np.uint32(other % 32)
        return rows


def _allows(mask: NDArray[np.uint32], token: int) -> bool:
    return bool(mask.item(token // 32) >> token % 32 & 1)


def _hold_back(row: NDArray[np.uint32], ids: frozenset[int]) -> None:
    """Exclude ids, unless there is nothing else."""
    held = [token for token in ids if token // 32 < len(row) and row.item(token // 32) >> token % 32 & 1]
    if not held:
        return
    kept = row.copy()
    for token in held:
        kept[token // 32] &= ~np.uint32(1 << token % 32)
    if kept.any():
        row[:] = kept


def vocabulary_of(path: Path, spec: ModelSpec | EncoderDecoderSpec) -> Callable[[], Vocabulary]:
    """Reads the model's own tokenizer, when it is called."""

    def read() -> Vocabulary:
        from orcaserve.text.tokenizer import Tokenizer

        return Tokenizer.from_path(path).vocabulary(spec.vocab_size, spec.eos_ids)

    return read
