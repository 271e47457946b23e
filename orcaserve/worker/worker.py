"""Worker: model, K/V manager and sampler, for one iteration at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain

import torch

from orcaserve.config import EngineConfig
from orcaserve.core import Batch, BatchEntry, ConfigError, EngineFacts, IterationResult
from orcaserve.model.kv_manager import KVManager, slot_bytes
from orcaserve.model.loader import DTYPES, load_model
from orcaserve.model.sampler import Sampler
from orcaserve.model.transformer import Transformer
from orcaserve.worker.memory import choose_n_slots
from orcaserve.worker.resources import available_cores, available_memory


class Worker:
    """Runs batches. Not thread-safe: one device executor's thread loads it and runs it.

    facts: what the loaded model is, for those who check requests.
    """

    def __init__(self, model: Transformer, kv: KVManager, sampler: Sampler, facts: EngineFacts) -> None:
        self.facts = facts
        self._model = model
        self._kv = kv
        self._sampler = sampler

    @classmethod
    def load(cls, config: EngineConfig) -> Worker:
        """Load the model, then size the K/V region by the memory that is left.

        Raises ModelError if the model cannot be had, ConfigError if a setting does not suit it or this machine.
        """
        torch.set_num_threads(config.model.threads or available_cores())
        model = load_model(config.model.path, config.model.dtype, config.model.device)
        spec, kv_dtype = model.spec, DTYPES[config.kv.dtype]
        context_length = _context_length(config.model.max_model_len, spec.context_length)
        n_slots = choose_n_slots(
            config.kv,
            slot_bytes(spec.n_layers, spec.n_kv_heads, spec.head_dim, kv_dtype),
            available_memory(),
            config.scheduler.max_bs * context_length,
        )
        kv = KVManager(
            spec.n_layers, spec.n_kv_heads, spec.head_dim, n_slots, config.kv.page_size, kv_dtype, config.model.device
        )
        facts = EngineFacts(
            model_name=config.model.name,
            vocab_size=spec.vocab_size,
            context_length=context_length,
            n_slots=n_slots,
            max_bs=config.scheduler.max_bs,
            n_workers=1,
            eos_ids=spec.eos_ids,
        )
        return cls(model, kv, Sampler(), facts)

    @torch.inference_mode()
    def run(self, batch: Batch) -> IterationResult:
        """One iteration: drop, extend, forward, sample. What is wrong with one entry fails that request alone."""
        started = time.perf_counter()
        for request_id in batch.drops:
            self._kv.drop(request_id)
        self._sampler.drop(batch.drops)
        failures: dict[int, str] = {}
        runnable: list[BatchEntry] = []
        for entry in batch.entries:
            why = self._fault(entry)
            if why is None:
                runnable.append(entry)
            else:
                failures[entry.request_id] = why
        tokens: dict[int, int] = {}
        if runnable:
            ids = [entry.request_id for entry in runnable]
            sampled, failed = self._iterate(runnable, ids)
            tokens = dict(zip(ids, sampled, strict=True))
            failures |= failed
        return IterationResult(
            batch.iteration,
            [tokens.get(entry.request_id, 0) for entry in batch.entries],
            failures,
            time.perf_counter() - started,
        )

    def _iterate(self, entries: Sequence[BatchEntry], ids: Sequence[int]) -> tuple[Sequence[int], dict[int, str]]:
        """One token for each entry, and which of them mean nothing."""
        layout = self._kv.lay_out([(entry.request_id, len(entry.tokens)) for entry in entries])
        flat = torch.tensor(list(chain.from_iterable(entry.tokens for entry in entries)), dtype=torch.int64)
        for entry in entries:
            if entry.params is not None:
                self._sampler.admit(entry.request_id, entry.tokens, entry.params, entry.stop_ids, entry.seed)
        logits = self._model.forward(flat.to(self._model.device), layout, self._kv)
        return self._sampler.sample(logits, ids)

    def _fault(self, entry: BatchEntry) -> str | None:
        """Why this entry cannot be run, fit to show to a client, or None. Checked before: this is the last line."""
        if not (min(entry.tokens) >= 0 and max(entry.tokens) < self.facts.vocab_size):
            return f"a token id lies outside 0..{self.facts.vocab_size - 1}"
        if entry.position + len(entry.tokens) > self.facts.context_length:
            return f"the context length of {self.facts.context_length} tokens is exceeded"
        if entry.position != self._kv.n_tokens(entry.request_id):
            return "the tokens of this request were lost"
        return None


def _context_length(wanted: int | None, trained: int) -> int:
    if wanted is not None and wanted > trained:
        raise ConfigError("--max-model-len", f"the model was trained for {trained} tokens, not {wanted}")
    return wanted or trained
