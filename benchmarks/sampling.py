"""What does choosing the tokens of an iteration cost, option by option, beside PyTorch's sampler?

    python benchmarks/sampling.py [--rows N] [--repeats N] [--reference] [--out FILE]

Rows of logits of the default model's vocabulary (49,152), normal with a spread of 2.5 and twenty tokens that stand out.
Milliseconds per iteration, best of the repetitions, Python's share included. Another call on the same team goes just
before: it is awake, as it is after the model's call in a worker. Each thread has a core of its own: on a busy machine
the system may put both on one.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import report
from numpy.typing import NDArray

from orcaserve.core.sampling_params import SamplingParams
from orcaserve.native import _kernels
from orcaserve.native.sampler import Sampler

VOCABULARY = 49_152
ALL_CORES = os.sched_getaffinity(0)
PROMPT = 144  # tokens of a text so far
STOPS = frozenset({0, 2})
PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.3}
BIAS = {"logit_bias": {i * 150: 1.0 for i in range(300)}}
GREEDY = {"temperature": 0.0}

CASES: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "greedy, three penalties": GREEDY | PENALTIES,
    "greedy, 300 biases": GREEDY | BIAS,
    "greedy, min_tokens": GREEDY | {"min_tokens": 100_000},
    "temperature": {"temperature": 0.8},
    "top_k 50": {"top_k": 50},
    "top_k 1000": {"top_k": 1000},
    "top_p 0.95": {"top_p": 0.95},
    "min_p 0.05": {"min_p": 0.05},
    "all of them": {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.02, "min_tokens": 100_000}
    | PENALTIES
    | BIAS,
    "temperature 2, top_p 0.95: flat": {"temperature": 2.0, "top_p": 0.95},
}


def make_logits(rows: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((rows, VOCABULARY)) * 2.5
    logits[:, :20] += 12
    return rng.permuted(logits, axis=1).astype(np.float32)


def admit_all(sampler: Any, rows: int, options: dict[str, Any]) -> None:
    prompt = np.random.default_rng(1).integers(0, VOCABULARY, PROMPT).tolist()
    for row in range(rows):
        sampler.admit(row, prompt, SamplingParams(**{"max_tokens": 10**6} | options), STOPS, row)


def best_ms(prepare: Callable[[], object], call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        prepare()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


def pinned_team(n_threads: int) -> _kernels.Team:
    """A team whose members, this thread among them, each keep to one core."""
    cores = sorted(ALL_CORES)
    os.sched_setaffinity(0, cores[:1])
    before = threads()
    team = _kernels.Team(n_threads)
    for i, thread in enumerate(sorted(threads() - before)):
        os.sched_setaffinity(thread, {cores[(1 + i) % len(cores)]})
    return team


class Bench:
    """Rows of logits and a team to sample them."""

    def __init__(self, logits: NDArray[np.float32], rows: NDArray[np.float32], n_threads: int, repeats: int) -> None:
        self._logits = logits
        self._rows = rows  # a copy for each call, which overwrites it
        self._ids = list(range(len(logits)))
        self._repeats = repeats
        self._team = pinned_team(n_threads)
        self._waker = Sampler(self._team)
        admit_all(self._waker, len(logits), GREEDY)

    def measure(self, options: dict[str, Any]) -> float:
        sampler = self._admitted(options)
        return self._time(lambda: sampler.sample(self._rows, self._ids))

    def measure_masks(self) -> float:
        """Greedy, every row with a mask that allows every other token."""
        sampler = self._admitted(GREEDY)
        masks = dict.fromkeys(self._ids, np.full(VOCABULARY // 32, 0x55555555, np.uint32))
        return self._time(lambda: sampler.sample(self._rows, self._ids, masks))

    def measure_logprobs(self) -> float:
        """Greedy, with log-probabilities of five tokens of every row."""
        sampler = self._admitted(GREEDY)
        n_top = dict.fromkeys(self._ids, 5)
        return self._time(lambda: sampler.sample_with_logprobs(self._rows, self._ids, n_top))

    def _admitted(self, options: dict[str, Any]) -> Sampler:
        sampler = Sampler(self._team)
        admit_all(sampler, len(self._logits), options)
        return sampler

    def _time(self, call: Callable[[], tuple[Any, ...]]) -> float:
        np.copyto(self._rows, self._logits)
        assert call()[1] == {}, "a row could not be sampled"
        return best_ms(self._prepare, call, self._repeats)

    def _prepare(self) -> None:
        np.copyto(self._rows, self._logits)
        self._waker.sample(self._logits, self._ids)


def measure_reference(logits: NDArray[np.float32], options: dict[str, Any], repeats: int) -> float:
    import torch

    from orcaserve.model.reference.sampler import Sampler as ReferenceSampler

    torch.set_num_threads(1)
    sampler, ids, tensor = ReferenceSampler(), list(range(len(logits))), torch.empty(logits.shape)
    admit_all(sampler, len(logits), options)

    def prepare() -> None:
        tensor.copy_(torch.from_numpy(logits))

    return best_ms(prepare, lambda: sampler.sample(tensor, ids), repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--reference", action="store_true", help="PyTorch's sampler too, on one thread")
    parser.add_argument("--out", help="also write the table to this file")
    args = parser.parse_args()
    logits = make_logits(args.rows)
    rows = np.empty_like(logits)
    benches = [Bench(logits, rows, n_threads, args.repeats) for n_threads in (1, 2)]

    def line(name: str, measure: Callable[[Bench], float]) -> list[str]:
        return [name, *(f"{measure(bench):.3f}" for bench in benches)]

    lines = []
    for name, options in CASES.items():
        lines.append(line(name, lambda bench, options=options: bench.measure(options)))
        if args.reference:
            lines[-1].append(f"{measure_reference(logits, options, max(3, args.repeats // 10)):.1f}")
    lines.append(line("greedy, masks", Bench.measure_masks))
    lines.append(line("greedy, logprobs of 5", Bench.measure_logprobs))
    columns = [f"{args.rows} rows, {_kernels.isa()}, ms", "1 thread", "2 threads"]
    if args.reference:
        columns.append("PyTorch, 1 thread")
        lines = [line + [""] * (4 - len(line)) for line in lines]
    os.sched_setaffinity(0, ALL_CORES)
    report.write(report.heading("Sampling", __doc__) + report.table(columns, lines), args.out)


if __name__ == "__main__":
    main()
