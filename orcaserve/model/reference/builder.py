"""TorchBuilder: weights as PyTorch tensors, and the model made of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from orcaserve.model.loader import ModelFiles
from orcaserve.model.parameter import Floats, Parameter
from orcaserve.model.part import Part
from orcaserve.model.reference.layers import Embedding, Linear, Norm
from orcaserve.model.reference.transformer import AllReduce, Transformer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TorchBuilder:
    """A WeightsBuilder. norm_eps: of the model's norms; dtype and device: how and where all weights are held."""

    def __init__(self, norm_eps: float, dtype: torch.dtype, device: torch.device | str) -> None:
        self._norm_eps, self._dtype, self._device = norm_eps, dtype, device

    def norm(self, weight: Floats, bias: Floats | None) -> Norm:
        return Norm(self._tensor(weight), None if bias is None else self._tensor(bias), self._norm_eps)

    def matrix(self, parts: Sequence[Parameter], biases: Sequence[Floats] | None, gated: bool = False) -> Linear:
        weight = torch.cat([self._tensor(part.floats()) for part in parts])
        return Linear(weight, None if biases is None else self._tensor(np.concatenate(biases)))

    def router(self, rows: Parameter) -> Linear:
        return self.matrix([rows], None)

    def table(self, rows: Parameter) -> Embedding:
        return Embedding(self._tensor(rows.floats()))

    def tied(self, table: Parameter) -> tuple[Embedding, Linear]:
        embedding = self.table(table)
        return embedding, Linear(embedding.weight)

    def tied_head(self, rows: Parameter) -> tuple[Linear, None]:
        return self.matrix([rows], None), None

    def _tensor(self, numbers: Floats) -> Tensor:
        return torch.from_numpy(numbers).to(self._device, self._dtype)


def load_reference(path: Path, dtype: str = "float32", device: torch.device | str = "cpu") -> Transformer:
    """Read a GGUF file or a checkpoint folder. dtype: float32 or bfloat16.

    Raises ModelNotFound, CheckpointError (damaged or contradictory) or UnsupportedModel.
    """
    with ModelFiles(path) as files:
        return Transformer(files.spec, files.load(TorchBuilder(files.spec.norm_eps, DTYPES[dtype], device)))


def load_reference_part(
    path: Path, part: Part, dtype: torch.dtype, device: torch.device, all_reduce: AllReduce | None
) -> Transformer:
    """The same of a part: reads its weights and no others. all_reduce: see Transformer. Raises as load_reference."""
    with ModelFiles(path) as files:
        builder = TorchBuilder(files.spec.norm_eps, dtype, device)
        return Transformer(files.spec, files.load_part(builder, part), part, all_reduce)
