"""Latency: how long a request waits for its first token, and then between tokens, while `batch` of them run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from orcaserve.evaluation.measured_engine import MeasuredEngine


@dataclass(frozen=True, slots=True)
class Latency:
    """One batch size's result: quantiles in milliseconds over all requests of all runs.

    ttft: from handing all requests over to a request's first token. gap: between two tokens of a request.
    """

    engine: str
    form: str
    kv_cache_dtype: str
    batch: int
    prompt: int
    gen: int
    ttft_ms_p50: float
    ttft_ms_p90: float
    ttft_ms_p99: float
    gap_ms_p50: float
    gap_ms_p90: float
    gap_ms_p99: float


def measure_latency(
    engine: MeasuredEngine, form: str, kv_cache_dtype: str, batch: int, prompt: int, gen: int, repeat: int
) -> Latency:
    engine.run(engine.random_prompts(batch, prompt), 2)
    runs = [engine.run(engine.random_prompts(batch, prompt), gen) for _ in range(repeat)]
    first = [seconds for run in runs for seconds in run.first_token_seconds]
    gaps = [seconds for run in runs for seconds in run.gaps]
    return Latency("orcaserve", form, kv_cache_dtype, batch, prompt, gen, *_milliseconds(first), *_milliseconds(gaps))


def _milliseconds(seconds: Sequence[float]) -> list[float]:
    return [round(quantile(seconds, share) * 1e3, 3) for share in (0.5, 0.9, 0.99)]


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that at least `share` of them do not exceed; NaN for none."""
    if not values:
        return float("nan")
    return sorted(values)[max(ceil(len(values) * share), 1) - 1]
