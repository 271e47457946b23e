"""Rotary positions: the frequencies that every kind of scaling gives to an iteration's requests.

Two kinds depend on how long the text is: `dynamic` stretches its base, and `longrope` changes its factors, once a text
is longer than the model was trained for. The length that counts here is the request's own, this iteration included:
exactly what transformers does with the request alone, so what else is in the batch never matters. Keys that were stored
when the text was shorter stay as they were, as they do there.

All arithmetic is in float32, as it is there (numpy takes Python's numbers as such beside float32 arrays).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from orcaserve.core.errors import CheckpointError
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.spec import RopeSpec

Floats = NDArray[np.float32]

BY_LENGTH = ("dynamic", "longrope")  # kinds whose frequencies change beyond trained_length


class Rope:
    """The frequencies of one model. amplitude: factor of the turned queries and keys."""

    def __init__(self, spec: RopeSpec) -> None:
        """Raises CheckpointError if the options give no finite numbers."""
        self.spec = spec
        try:
            with np.errstate(all="ignore"):
                self.amplitude = amplitude(spec)
                self._usual = inverse_frequencies(spec, spec.trained_length)[None]
        except ArithmeticError as error:
            raise CheckpointError("the rope options in the config give no numbers") from error
        if not math.isfinite(self.amplitude) or not np.isfinite(self._usual).all():
            raise CheckpointError("the rope options in the config give no finite numbers")

    def frequencies(self, layout: Layout) -> tuple[Floats, Int32s | None]:
        """Radians per position: sets [sets, dim / 2], and which set each request takes [R]; None if all take set 0."""
        if self.spec.kind not in BY_LENGTH:
            return self._usual, None
        lengths = (layout.contexts + layout.lengths).tolist()
        sets, choice = [self._usual[0]], np.zeros(len(lengths), np.int32)
        for r, length in enumerate(lengths):
            if length > self.spec.trained_length:
                choice[r] = len(sets)
                sets.append(inverse_frequencies(self.spec, length))
        return (self._usual, None) if len(sets) == 1 else (np.stack(sets), choice)


def inverse_frequencies(spec: RopeSpec, length: int) -> Floats:
    """Radians per position of each turned pair, float32 [dim / 2], for a text of `length` tokens."""
    kind, dim, theta = spec.kind, spec.dim, spec.theta
    if kind == "dynamic":
        stretch = spec.factor * max(length, spec.trained_length) / spec.trained_length - (spec.factor - 1)
        theta *= stretch ** (dim / (dim - 2)) if dim > 2 else 1.0
    steps = np.arange(0, dim, 2, dtype=np.float32)
    if kind == "proportional":
        turned = int(spec.turned_share * spec.head_dim // 2)
        frequencies = 1.0 / _power(theta, steps / float(spec.head_dim)) / spec.factor
        frequencies[turned:] = 0
        return frequencies
    periods = _power(theta, steps / float(dim))
    if kind == "longrope":
        factors = spec.long_factors if length > spec.trained_length else spec.short_factors
        return 1.0 / (np.array(factors, np.float32) * periods)
    frequencies = 1.0 / periods
    if kind == "linear":
        return frequencies / spec.factor
    if kind == "divisors":
        divisors = np.array(spec.short_factors, np.float32)
        return frequencies / spec.factor / divisors
    if kind == "llama3":
        return _llama3(spec, frequencies)
    if kind == "yarn":
        return _yarn(spec, periods)
    return frequencies


def amplitude(spec: RopeSpec) -> float:
    """The factor of turned queries and keys: 1 but for yarn and longrope."""
    if spec.amplitude is not None:
        return spec.amplitude
    if spec.factor <= 1:
        return spec.amplitude_multiplier
    if spec.kind == "yarn":
        both = spec.mscale and spec.mscale_all_dim
        numerator = 0.1 * (spec.mscale if both and spec.mscale else 1.0) * math.log(spec.factor) + 1
        denominator = 0.1 * spec.mscale_all_dim * math.log(spec.factor) + 1 if both and spec.mscale_all_dim else 1.0
        return numerator / denominator * spec.amplitude_multiplier
    if spec.kind == "longrope":
        return math.sqrt(1 + math.log(spec.factor) / math.log(spec.trained_length))
    return 1.0


def _llama3(spec: RopeSpec, frequencies: Floats) -> Floats:
    """Long waves are slowed down by `factor`, short ones stay, and those between are mixed."""
    turns = frequencies * float(spec.trained_length) / (2 * math.pi)  # over the length of training
    share: Floats = ((turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)).clip(0, 1)
    mixed: Floats = (1.0 - share) * frequencies / spec.factor + share * frequencies
    return mixed


def _yarn(spec: RopeSpec, periods: Floats) -> Floats:
    """As llama3's, with the mix linear in the index of the dimension."""

    def dimension(turns: float) -> float:
        """The (fractional) pair that turns so often over the length of training."""
        return spec.dim * math.log(spec.trained_length / (turns * 2 * math.pi)) / (2 * math.log(spec.theta))

    low, high = dimension(spec.beta_fast), dimension(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.dim - 1)
    if low == high:
        high += 0.001
    slowed = ((np.arange(spec.dim // 2, dtype=np.float32) - low) / (high - low)).clip(0, 1)
    mixed: Floats = slowed / (spec.factor * periods) + (1 - slowed) / periods
    return mixed


def _power(base: float, exponents: Floats) -> Floats:
    powers: Floats = np.power(base, exponents, dtype=np.float32)
    return powers
