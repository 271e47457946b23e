"""What the settings, the model and this machine's memory make of an engine, in one process or in many."""

from __future__ import annotations

from collections.abc import Sequence

from orcaserve.config import EngineConfig
from orcaserve.core import ConfigError, EngineFacts, SourceFacts
from orcaserve.core.window import most_slots, window_for
from orcaserve.model.encoder_decoder.spec import EncoderDecoderSpec
from orcaserve.model.rope import BY_LENGTH
from orcaserve.model.spec import ModelSpec
from orcaserve.worker.memory import choose_n_slots
from orcaserve.worker.resources import available_cores, available_memory

Spec = ModelSpec | EncoderDecoderSpec


def context_length(config: EngineConfig, spec: Spec) -> int:
    """Most tokens of one request. Raises ConfigError if the setting asks for more than the model can do."""
    if isinstance(spec, EncoderDecoderSpec):
        return sum(lengths_of_sides(config, spec))
    wanted, trained = config.model.max_model_len, spec.context_length
    if wanted is not None and wanted > trained:
        raise ConfigError("--max-model-len", f"the model was trained for {trained} tokens, not {wanted}")
    return wanted or trained


def lengths_of_sides(config: EngineConfig, spec: EncoderDecoderSpec) -> tuple[int, int]:
    """Most tokens that encoder and decoder read. The setting is for each of them; relative positions have no end.
    Raises ConfigError as `context_length`."""
    wanted = config.model.max_model_len
    if wanted is None:
        return spec.source_length, spec.output_length
    if spec.positions == "relative":
        return wanted, wanted
    if wanted > max(spec.source_length, spec.output_length):
        text = f"this model has {spec.source_length} positions for the prompt and {spec.output_length} for the output"
        raise ConfigError("--max-model-len", text)
    return min(wanted, spec.source_length), min(wanted, spec.output_length)


def window_of(config: EngineConfig, spec: Spec) -> int | None:
    """How many tokens back anybody looks, if every layer has a window and a request can grow past the largest; else
    None: a page holds a token's keys and values of all layers, so one that sees all keeps all."""
    if (
        isinstance(spec, EncoderDecoderSpec)
        or not spec.windows
        or not all(spec.windows)
        or max(spec.windows) >= context_length(config, spec)
    ):
        return None
    return max(spec.windows)


def check_deterministic(config: EngineConfig, spec: Spec) -> None:
    """Raises ConfigError if determinism was asked for and this model's numbers depend on how a text came.

    Where positions turn by the length that a text has in each iteration (model/rope.py), a text that is computed whole,
    after a preemption or in a new engine, has other keys than one that grew token by token.
    """
    if isinstance(spec, EncoderDecoderSpec):
        return  # it runs where kernels are missing, which was refused before
    rope = spec.rope
    if not config.deterministic or rope is None or rope.kind not in BY_LENGTH:
        return
    if context_length(config, spec) > rope.trained_length:
        text = f"this model's positions ({rope.kind}) depend on a text's length from {rope.trained_length} tokens on"
        raise ConfigError("--deterministic", f"{text}: take --max-model-len {rope.trained_length}")


def n_slots_for(config: EngineConfig, spec: Spec, slot_bytes: int, free_bytes: int | None = None) -> int:
    """Size of the K/V region, once all weights are loaded. slot_bytes: over all workers of a machine.
    free_bytes: of its memory; None: of this machine.

    Raises ConfigError if it does not fit.
    """
    longest, window = context_length(config, spec), window_of(config, spec)
    if window is not None:
        longest = min(longest, most_slots(window, config.kv.page_size))
    most_useful = config.scheduler.max_bs * longest
    free = available_memory() if free_bytes is None else free_bytes
    return choose_n_slots(config.kv, slot_bytes, free, most_useful, config.parallel.data_parallel_size)


def least_slots(config: EngineConfig, spec: Spec, machines: Sequence[tuple[int, int | None]]) -> int:
    """As `n_slots_for`, of the machine that has room for fewest. machines: bytes of a slot, and free ones.

    One that has layers of an encoder alone holds no keys and values.
    """
    return min(n_slots_for(config, spec, slot_bytes, free) for slot_bytes, free in machines if slot_bytes)


def n_threads_for(config: EngineConfig) -> int:
    """Threads of a worker: as set, or its share of the cores that all workers of all replicas have."""
    parallel = config.parallel
    return config.model.threads or max(available_cores() // (parallel.n_workers * parallel.data_parallel_size), 1)


def engine_facts(config: EngineConfig, spec: Spec, n_slots: int) -> EngineFacts:
    """Raises ConfigError if a setting does not suit the model."""
    shareable, source = None, None
    if isinstance(spec, EncoderDecoderSpec):
        longest, _ = lengths_of_sides(config, spec)
        source = SourceFacts(longest, spec.start, config.kv.page_size)
    elif spec.rope is not None and spec.rope.kind in BY_LENGTH:
        shareable = spec.rope.trained_length
    return EngineFacts(
        model_name=config.model.name,
        vocab_size=spec.vocab_size,
        context_length=context_length(config, spec),
        n_slots=n_slots,
        max_bs=config.scheduler.max_bs,
        n_workers=config.parallel.pipeline_parallel_size,
        eos_ids=spec.eos_ids,
        embedding_size=spec.hidden_size if source is None else 0,
        window=window_for(window_of(config, spec), n_slots, config.kv.page_size),
        shareable=shareable,
        source=source,
    )
