"""The Engine protocol: whatever runs a batch for one iteration. Loop, simulator and tests meet engines here only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from orcaserve.core.adapter import AdapterAnswer, AdapterSource
from orcaserve.core.batch import Batch, IterationResult
from orcaserve.core.request import Progress


@dataclass(frozen=True, slots=True)
class EngineFailure:
    """The engine can run no further batch; batches in flight will not return. `message` is for the log."""

    message: str


EngineEvent = IterationResult | EngineFailure


class Engine(Protocol):
    """Runs batches, first in first out, up to `n_workers` in flight."""

    @property
    def n_workers(self) -> int: ...

    def start(self, deliver: Callable[[EngineEvent], None]) -> None:
        """Begin. `deliver` is called from any thread, once per submitted batch in order, or once with a failure."""

    def submit(self, batch: Batch) -> None:
        """Hand over a batch; returns at once, before the batch has run."""

    def load_adapter(self, adapter: AdapterSource, answer: AdapterAnswer) -> None:
        """Have requests name it from the answer on. Returns at once; from any thread."""

    def unload_adapter(self, number: int, answer: AdapterAnswer) -> None:
        """No request has it any more, and none will. Of no effect for an unknown one. Returns at once."""

    def close(self) -> None:
        """Stop after what is in flight; idempotent. Nothing is delivered afterwards."""

    def kill(self, for_good: bool = False) -> None:
        """End other processes of the engine, whatever they do: this process is about to end. From any thread.

        for_good: there will be no further engine.
        """


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """Of a model with an encoder, which reads the prompt; its decoder begins the output with a token of its own.

    longest: most tokens of a prompt. start: the token that the decoder begins with. page_size: the slots of the prompt
    and those of the output are whole pages of so many, each.
    """

    longest: int
    start: int
    page_size: int = 1


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the endpoint must know of the loaded model to check requests at the door.

    vocab_size: rows of the output head: valid ids are 0..vocab_size-1.
    context_length: most tokens (input + output) of one request.
    n_slots: size of the K/V region in tokens; eos_ids: ids that end a request by default.
    embedding_size: numbers of an embedding; 0: this model makes none.
    source: of a model with an encoder; None: it has none.
    shareable: most tokens of a text whose keys do not depend on how long it is; None: they never do. For the scheduler.
    window: so many tokens back, at most, anybody looks, and the K/V region has room for that: pages before them are
    released while a request goes on. None: they are not.
    """

    model_name: str
    vocab_size: int
    context_length: int
    n_slots: int
    max_bs: int
    n_workers: int
    eos_ids: frozenset[int] = frozenset()
    shareable: int | None = None
    source: SourceFacts | None = None
    window: int | None = None
    embedding_size: int = 0

    @property
    def longest_request(self) -> int:
        """The most tokens (input + output) that any one request may ask for."""
        return self.context_length if self.window is not None else min(self.context_length, self.n_slots)

    @property
    def longest_prompt(self) -> int:
        """The most tokens of a prompt, whatever its request asks for."""
        return self.longest_request if self.source is None else min(self.source.longest, self.n_slots)

    def most_output(self, n_input: int) -> int:
        """The most tokens that may be generated for a prompt of so many; 0 or less: none."""
        if self.source is None:
            return self.longest_request - n_input
        page = self.source.page_size
        free = self.n_slots - -(-n_input // page) * page
        return min(self.context_length - self.source.longest, free - free % page - 1)


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A reading of the engine after an iteration; counters are since its start, times in seconds."""

    iteration: int = 0
    n_running: int = 0  # requests in the batch that just ended
    n_waiting: int = 0  # live requests that wait for their first batch
    n_live: int = 0
    n_reserved: int = 0  # slots
    n_used: int = 0  # slots that hold K/V now
    batch_tokens: int = 0  # input tokens of the iteration
    batch_initiations: int = 0
    iteration_seconds: float = 0.0
    scheduler_seconds: float = 0.0
    n_preempted: int = 0  # times that a request lost its K/V to another
    n_recomputed: int = 0  # tokens whose K/V was made once more for that
    n_waiting_tokens: int = 0  # input tokens of those who wait for their first batch
    n_cached: int = 0  # input tokens whose K/V was there already, of all requests that were begun
    n_kept: int = 0  # slots that hold K/V of prefixes which no live request uses
    n_late: int = 0  # requests that were not begun because they could not make their deadline any more


@dataclass(frozen=True, slots=True)
class IterationReport:
    """All news of one turn of the loop: what travels to the endpoint as one message.

    describes: some of the news has log-probabilities, or an embedding.
    """

    progress: Sequence[Progress]
    status: EngineStatus
    describes: bool = False
