"""Throughput: tokens a second of the initiation, and of what follows it, for a batch of equal requests."""

from __future__ import annotations

from dataclasses import dataclass

from orcaserve.evaluation.measured_engine import MeasuredEngine


@dataclass(frozen=True, slots=True)
class Throughput:
    """One batch size's result.

    form: how weights are held. prompt, gen: tokens of each request. prefill_tok_s: input tokens of all prompts at once,
    until their first output tokens are there. decode_tok_s: the tokens after the first, None if they took no time that
    could be told from the initiation's. load_s: seconds of loading.
    """

    engine: str
    form: str
    kv_cache_dtype: str
    batch: int
    prompt: int
    gen: int
    prefill_tok_s: float
    decode_tok_s: float | None
    load_s: float


def measure_throughput(
    engine: MeasuredEngine, form: str, kv_cache_dtype: str, batch: int, prompt: int, gen: int, repeat: int
) -> Throughput:
    """Best of `repeat` runs of one token, and best of `repeat` runs of 1 + gen tokens; the difference is decoding."""

    def seconds(tokens: int) -> float:
        return engine.run(engine.random_prompts(batch, prompt), tokens).seconds

    seconds(2)  # memory is touched and code is warm afterwards
    first = min(seconds(1) for _ in range(repeat))
    whole = min(seconds(1 + gen) for _ in range(repeat))
    return Throughput(
        engine="orcaserve",
        form=form,
        kv_cache_dtype=kv_cache_dtype,
        batch=batch,
        prompt=prompt,
        gen=gen,
        prefill_tok_s=round(batch * prompt / first, 1),
        decode_tok_s=round(batch * gen / (whole - first), 1) if whole > first else None,
        load_s=round(engine.load_seconds, 2),
    )
