"""Rotary positions: inverse frequencies for every kind of scaling, and the cosines and sines of an iteration.

Two kinds depend on how long the text is: `dynamic` stretches its base, and `longrope` changes its factors, once a text
is longer than the model was trained for. The length that counts here is the request's own, this iteration included:
exactly what transformers does with the request alone, so what else is in the batch never matters. Keys that were stored
when the text was shorter stay as they were, as they do there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from orcaserve.core.errors import CheckpointError
from orcaserve.model.layout import Layout
from orcaserve.model.spec import RopeSpec


class Rope:
    """Turns positions into the factors of `rotate` for one model."""

    def __init__(self, spec: RopeSpec, device: torch.device | str = "cpu") -> None:
        """Raises CheckpointError if the options give no finite numbers."""
        self.spec = spec
        self._device = torch.device(device)
        try:
            self.amplitude = amplitude(spec)
            self._usual = inverse_frequencies(spec, spec.trained_length).to(device)
        except ArithmeticError as error:
            raise CheckpointError("the rope options in the config give no numbers") from error
        if not math.isfinite(self.amplitude) or not self._usual.isfinite().all():
            raise CheckpointError("the rope options in the config give no finite numbers")

    def factors(self, layout: Layout, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """For every row of the flat batch what `rotate` takes, each [N, dim], with the amplitude in them."""
        angles = layout.positions[:, None].float() * self._frequencies(layout)
        cos, sin = (angles.cos() * self.amplitude).to(dtype), (angles.sin() * self.amplitude).to(dtype)
        return torch.cat((cos, cos), 1), torch.cat((-sin, sin), 1)

    def _frequencies(self, layout: Layout) -> Tensor:
        """[dim / 2] for all rows, or [N, dim / 2] where some request is longer than the model was trained for."""
        if self.spec.kind not in ("dynamic", "longrope"):
            return self._usual
        counts = layout.starts.diff()
        lengths = (layout.contexts + counts).tolist()
        if max(lengths) <= self.spec.trained_length:
            return self._usual
        rows = [
            inverse_frequencies(self.spec, length).to(self._device)
            if length > self.spec.trained_length
            else self._usual
            for length in lengths
        ]
        return torch.stack(rows).repeat_interleave(counts.to(self._device), dim=0)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn the first dimensions of x [N, heads, head_dim] in place: of cos.shape[1], dimension i pairs with i + half.

    cos: the cosines, twice; sin: the sines, negative for the first half. See Rope.factors.
    """
    turned = x.narrow(2, 0, cos.shape[1])
    swapped = turned.roll(cos.shape[1] // 2, 2)
    # Products and a sum, no fused step: a vector's last lanes would round otherwise, and differ from batch to batch.
    turned.mul_(cos[:, None]).add_(swapped.mul_(sin[:, None]))


def inverse_frequencies(spec: RopeSpec, length: int) -> Tensor:
    """Radians per position of each turned pair, float32 [dim / 2], for a text of `length` tokens."""
    kind, dim, theta = spec.kind, spec.dim, spec.theta
    if kind == "dynamic":
        stretch = spec.factor * max(length, spec.trained_length) / spec.trained_length - (spec.factor - 1)
        theta *= stretch ** (dim / (dim - 2)) if dim > 2 else 1.0
    steps = torch.arange(0, dim, 2).float()
    if kind == "proportional":
        turned = int(spec.turned_share * spec.head_dim // 2)
        frequencies = 1.0 / theta ** (steps / spec.head_dim) / spec.factor
        frequencies[turned:] = 0
        return frequencies
    periods = theta ** (steps / dim)
    if kind == "longrope":
        factors = spec.long_factors if length > spec.trained_length else spec.short_factors
        return 1.0 / (torch.tensor(factors) * periods)
    frequencies = 1.0 / periods
    if kind == "linear":
        return frequencies / spec.factor
    if kind == "divisors":
        return frequencies / spec.factor / torch.tensor(spec.short_factors)
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


def _llama3(spec: RopeSpec, frequencies: Tensor) -> Tensor:
    """Long waves are slowed down by `factor`, short ones stay, and those between are mixed."""
    turns = spec.trained_length * frequencies / (2 * math.pi)  # over the length of training
    share = ((turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)).clamp(0, 1)
    return (1 - share) * frequencies / spec.factor + share * frequencies


def _yarn(spec: RopeSpec, periods: Tensor) -> Tensor:
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
    slowed = ((torch.arange(spec.dim // 2).float() - low) / (high - low)).clamp(0, 1)
    return slowed / (spec.factor * periods) + (1 - slowed) / periods
