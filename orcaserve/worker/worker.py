"""Worker: model, K/V manager and sampler, for one iteration at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from orcaserve.config import EngineConfig
from orcaserve.core import AdapterSource, Batch, BatchEntry, EngineFacts, IterationResult, Logprobs, Prefix
from orcaserve.model.kv_manager import KVManager
from orcaserve.worker.adapters import LoadedAdapters
from orcaserve.worker.backend import Backend, Outcome, load_backend
from orcaserve.worker.facts import check_deterministic, engine_facts, n_slots_for, n_threads_for
from orcaserve.worker.pooling import Pools
from orcaserve.worker.scoring import NOT_NUMBERS, NOTHING, Wanted, scored_rows


class Worker:
    """Runs batches. Not thread-safe: one device executor's thread loads it and runs it.

    facts: what the loaded model is, for those who check requests.
    """

    def __init__(
        self, backend: Backend, kv: KVManager, facts: EngineFacts, adapters: LoadedAdapters | None = None
    ) -> None:
        self.facts = facts
        self.adapters = adapters
        self._backend = backend
        self._kv = kv
        self._reads = facts.source is not None  # the model has an encoder
        self._inputs: dict[int, list[int]] = {}  # of requests whose initiation comes in pieces: what has come
        self._adapter_of: dict[int, int] = {}  # of requests that have one
        self._n_top: dict[int, int] = {}  # of requests that ask for log-probabilities: best tokens to tell of each
        self._pools = Pools()

    @classmethod
    def load(cls, config: EngineConfig) -> Worker:
        """Load the model, then size the K/V region by the memory that is left.

        Raises ModelError if the model cannot be had, ConfigError if a setting does not suit it or this machine.
        """
        backend = load_backend(config, n_threads_for(config))
        check_deterministic(config, backend.spec)
        adapters = LoadedAdapters.begin(backend, config)  # first: their memory is not free for keys and values
        return cls.over(backend, config, n_slots_for(config, backend.spec, backend.slot_bytes), adapters)

    @classmethod
    def over(
        cls, backend: Backend, config: EngineConfig, n_slots: int, adapters: LoadedAdapters | None = None
    ) -> Worker:
        """Give a loaded backend its K/V region, and its adapters if it has not got them."""
        adapters = adapters or LoadedAdapters.begin(backend, config)
        facts = engine_facts(config, backend.spec, n_slots)
        kv = KVManager(n_slots, config.kv.page_size, facts.window)
        backend.allocate(kv.n_pages)
        return cls(backend, kv, facts, adapters)

    @property
    def progress(self) -> int:
        """Changes whenever a piece of an iteration is begun; for any thread."""
        return self._backend.progress

    def run(self, batch: Batch) -> IterationResult:
        """One iteration: drop, extend, forward, sample, release what no window reaches any more. What is wrong with one
        entry fails that request alone."""
        started = time.perf_counter()
        for request_id in batch.drops:
            self._kv.drop(request_id)
            self._inputs.pop(request_id, None)
            self._n_top.pop(request_id, None)
            self._pools.drop(request_id)
            self._adapter_of.pop(request_id, None)
        for block in batch.evicted:
            self._kv.evict(block)
        self._backend.sampler.drop(batch.drops)
        failures: dict[int, str] = {}
        runnable: list[BatchEntry] = []
        kept = {each.request_id: each for each in batch.kept}
        filled: set[int] = set()  # blocks of this iteration
        shares = False
        for entry in batch.entries:
            why = self._fault(entry)
            if why is not None:
                failures[entry.request_id] = why
                continue
            runnable.append(entry)
            if entry.adapter:
                self._adapter_of[entry.request_id] = entry.adapter
            if entry.prefix is not None:
                self._begin(entry.request_id, entry.prefix)
                shares = shares or not filled.isdisjoint(entry.prefix.blocks)
            if self._reads and entry.params is not None:  # all but the decoder's start and what it put out before
                self._kv.begin_source(entry.request_id, len(entry.tokens) - entry.n_output - 1)
            self._kv.extend(entry.request_id, len(entry.tokens))
            if (full := kept.get(entry.request_id)) is not None:
                self._kv.keep(full.request_id, full.first_page, full.first_block, full.n)
                filled.update(range(full.first_block, full.first_block + full.n))
        tokens: Sequence[int] = []
        logprobs: Mapping[int, Logprobs] = {}
        embeddings: dict[int, bytes] = {}
        chosen_for = [entry for entry in runnable if not entry.n_to_come and entry.pooling is None]
        if runnable:
            tokens, failed, logprobs = self._iterate(runnable, chosen_for, shares)
            failures |= failed
            self._kv.leave_behind([entry.request_id for entry in runnable])
        if len(chosen_for) < len(runnable):
            for request_id, embedding in self._pools.take(runnable).items():
                if embedding is None:
                    failures[request_id] = NOT_NUMBERS
                elif request_id not in failures:
                    embeddings[request_id] = embedding
        if len(chosen_for) < len(batch.entries):
            by_id = {entry.request_id: token for entry, token in zip(chosen_for, tokens, strict=True)}
            tokens = [by_id.get(entry.request_id, 0) for entry in batch.entries]
        return IterationResult(batch.iteration, tokens, failures, time.perf_counter() - started, logprobs, embeddings)

    def read_adapter(self, adapter: AdapterSource) -> Any:
        """For `add_adapter`; from any thread. Raises ModelError."""
        assert self.adapters is not None
        return self.adapters.read(adapter)

    def add_adapter(self, number: int, made: Any) -> None:
        """From now on entries may name it."""
        assert self.adapters is not None
        self.adapters.add(number, made)

    def remove_adapter(self, number: int) -> None:
        """No entry names it any more."""
        if self.adapters is not None:
            self.adapters.remove(number)

    def prepare(self) -> None:
        """After a result was passed on: do what the next iteration need not wait for then."""
        self._backend.sampler.prepare()

    def _begin(self, request_id: int, prefix: Prefix) -> None:
        """What others have computed for a request that is new here. What is copied was filled before this iteration."""
        pages = self._kv.begin(request_id, prefix.blocks, prefix.copied, prefix.n_copied)
        if pages is not None:
            self._backend.copy_page(*pages)
        self._inputs[request_id] = list(prefix.tokens)

    def _iterate(self, entries: Sequence[BatchEntry], chosen_for: Sequence[BatchEntry], shares: bool) -> Outcome:
        """A token for each of `chosen_for`, and which of them mean nothing. They have room for their tokens."""
        layout = self._kv.layout_of([(entry.request_id, len(entry.tokens)) for entry in entries], shares)
        if self._adapter_of:
            layout = replace(layout, adapters=[self._adapter_of.get(entry.request_id, 0) for entry in entries])
        flat = np.fromiter(chain.from_iterable(entry.tokens for entry in entries), np.int32, layout.n_tokens)
        scores = pools = False
        for entry in entries:
            pools = pools or entry.pooling is not None
            if entry.n_to_come:
                scores = scores or entry.scoring is not None
                self._inputs.setdefault(entry.request_id, []).extend(entry.tokens)
            elif entry.params is not None:
                tokens = [*self._inputs.pop(entry.request_id, ()), *entry.tokens] if entry.position else entry.tokens
                n_input = len(tokens) - entry.n_output
                settings = entry.params, entry.stop_ids, entry.seed
                first = n_input - 1 if self._reads else 0  # what an encoder reads is no text that goes on
                self._backend.sampler.admit(entry.request_id, tokens[first:n_input], *settings, tokens[n_input:])
                scores = scores or entry.scoring is not None
                if entry.params.logprobs is not None:
                    self._n_top[entry.request_id] = entry.params.logprobs
        rows = None
        if len(chosen_for) < len(entries):
            rows = [row for row, entry in enumerate(entries) if not entry.n_to_come and entry.pooling is None]
        ids = [entry.request_id for entry in chosen_for]
        wanted = NOTHING
        if scores or pools or self._n_top:
            chosen = {request_id: self._n_top[request_id] for request_id in ids if request_id in self._n_top}
            scored = scored_rows(entries, layout) if scores else ()
            wanted = Wanted(chosen, scored, self._pools.rows(entries, layout) if pools else ())
        return self._backend.iterate(flat, layout, ids, rows, wanted)

    def _fault(self, entry: BatchEntry) -> str | None:
        """Why this entry cannot be run, fit to show to a client, or None. Checked before: this is the last line."""
        prefix = entry.prefix
        tokens = entry.tokens if prefix is None else [*prefix.tokens, *entry.tokens]
        if not (min(tokens) >= 0 and max(tokens) < self.facts.vocab_size):
            return f"a token id lies outside 0..{self.facts.vocab_size - 1}"
        if entry.position + len(entry.tokens) > self.facts.context_length:
            return f"the context length of {self.facts.context_length} tokens is exceeded"
        if self._kv.n_tokens(entry.request_id) != (entry.position if prefix is None else 0):
            return "the tokens of this request were lost"
        if entry.adapter and (self.adapters is None or entry.adapter not in self.adapters):
            return "the adapter of this request is not loaded"
        if prefix is not None and not self._knows(prefix):
            return "the tokens of this request were lost"
        if (
            entry.n_to_come
            and entry.scoring is not None
            and not 0 <= (entry.scoring.follower or 0) < self.facts.vocab_size
        ):
            return f"a token id lies outside 0..{self.facts.vocab_size - 1}"
        return None

    def _knows(self, prefix: Prefix) -> bool:
        copied = prefix.n_copied == 0 or self._kv.has(prefix.copied)
        return copied and all(map(self._kv.has, prefix.blocks))
