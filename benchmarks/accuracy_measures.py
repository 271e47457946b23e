"""How far the logits of one form of a model are from another's: the arithmetic of accuracy.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
BLOCK = 32  # rows of [vocabulary] at a time


def windows(ids: Sequence[int], length: int) -> Iterator[Sequence[int]]:
    """The text cut into windows; the last may be shorter. One token alone predicts nothing and is left out."""
    for start in range(0, len(ids), length):
        window = ids[start : start + length]
        if len(window) > 1:
            yield window


def blocks(window: Sequence[int]) -> Iterator[tuple[slice, Sequence[int]]]:
    """Rows of a window's logits, few enough for the cache, and the tokens that come next at each; without the last."""
    last = len(window) - 1
    for start in range(0, last, BLOCK):
        end = min(start + BLOCK, last)
        yield slice(start, end), window[start + 1 : end + 1]


def log_softmax(logits: Floats) -> Floats:
    """[n, vocabulary] -> the logarithms of the probabilities."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


@dataclass(slots=True)
class Tally:
    """Sums over predicted tokens. kl: of KL(reference || form), nats; same_best: equal likeliest tokens."""

    n: int = 0
    nll: float = 0.0
    kl: float = 0.0
    same_best: int = 0

    def add(self, log_probs: Floats, reference: Floats, targets: Sequence[int]) -> None:
        """log_probs, reference: [n, vocabulary], of the same n places; targets: the tokens that come next there."""
        rows = np.arange(len(targets))
        self.n += len(targets)
        self.nll -= float(log_probs[rows, targets].sum(dtype=np.float64))
        self.kl += float((np.exp(reference) * (reference - log_probs)).sum(dtype=np.float64))
        self.same_best += int((log_probs.argmax(axis=1) == reference.argmax(axis=1)).sum())

    @property
    def perplexity(self) -> float:
        return exp(self.nll / self.n)


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a greedy text first differs: the step, and the reference's lead of its best logit over its second there."""

    step: int
    gap: float


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place at which two texts of one length differ."""
    assert len(one) == len(other)
    return next((i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), None)


def lead(logits: NDArray[np.float32]) -> float:
    """[vocabulary] -> the best logit less the second best."""
    second, best = np.partition(logits, -2)[-2:]
    return float(best - second)
