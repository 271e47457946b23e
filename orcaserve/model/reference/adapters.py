"""Low-rank adapters in PyTorch: a layer whose Linears give some rows more than others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orcaserve.model.adapter import LINEARS, Adapter
from orcaserve.model.layout import Layout
from orcaserve.model.reference.layers import Linear, Norm
from orcaserve.model.weights import Layer


@dataclass(frozen=True, slots=True)
class _Gain:
    """y[:, first : first + outputs] += (x a^T) b^T scale."""

    first: int
    a: Tensor
    b: Tensor
    scale: float


Made = Sequence[Mapping[str, Sequence[_Gain]]]
"""An adapter in tensors: of each layer, by the name of the Linear."""


class _Adapted(Linear):
    """A Linear, and what some rows gain: rows, and their gains."""

    def __init__(self, linear: Linear, gains: Sequence[tuple[Tensor, Sequence[_Gain]]]) -> None:
        super().__init__(linear.weight, linear.bias)
        self._gains = gains

    def __call__(self, x: Tensor) -> Tensor:
        y = super().__call__(x)
        for rows, gains in self._gains:
            own = x[rows]
            for gain in gains:
                outputs = slice(gain.first, gain.first + len(gain.b))
                y[rows, outputs] += gain.scale * (own @ gain.a.T @ gain.b.T)
        return y


class Adapters:
    """By number."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._layers: dict[int, Made] = {}

    def make(self, adapter: Adapter) -> Made:
        return [
            {
                name: [
                    _Gain(gain.first, self._tensor(gain.low_rank.a), self._tensor(gain.low_rank.b), gain.low_rank.scale)
                    for gain in gains
                ]
                for name, gains in layer.items()
            }
            for layer in adapter.layers
        ]

    def add(self, number: int, made: Made) -> None:
        self._layers[number] = made

    def remove(self, number: int) -> None:
        self._layers.pop(number, None)

    def layers(self, layers: Sequence[Layer[Linear, Norm]], layout: Layout) -> Iterable[Layer[Linear, Norm]]:
        """The layers as the rows of this iteration have them: themselves, if nobody has an adapter."""
        if layout.adapters is None or not any(layout.adapters):
            return layers
        of_rows = np.repeat(np.array(layout.adapters), layout.lengths)
        rows = {
            number: torch.from_numpy(np.flatnonzero(of_rows == number)).to(self._device)
            for number in sorted(set(layout.adapters) - {0})
        }
        return (self._adapted(index, layer, rows) for index, layer in enumerate(layers))

    def _adapted(self, index: int, layer: Layer[Linear, Norm], rows: Mapping[int, Tensor]) -> Layer[Linear, Norm]:
        changed: dict[str, Any] = {}
        for name in LINEARS:
            linear: Linear = getattr(layer, name)
            gains = [(own, self._layers[number][index].get(name, ())) for number, own in rows.items()]
            if any(each for _, each in gains):
                changed[name] = _Adapted(linear, gains)
        return replace(layer, **changed)

    def _tensor(self, numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers).to(self._device, self._dtype)
