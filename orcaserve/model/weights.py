"""Weights: the pieces a model is made of, and the builder that makes each piece from the tensors of a checkpoint.

The loader knows which tensors belong together; the builder knows what to make of them: PyTorch tensors, or panels of
numbers in the order in which a kernel reads them. So a new way to hold weights is a new builder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from orcaserve.model.parameter import Floats, Parameter

MatrixT = TypeVar("MatrixT", covariant=True)
NormT = TypeVar("NormT", covariant=True)
TableT = TypeVar("TableT", covariant=True)


@dataclass(frozen=True, slots=True)
class Expert(Generic[MatrixT]):
    """One of the MLPs of a layer of experts."""

    up: MatrixT
    down: MatrixT


@dataclass(frozen=True, slots=True)
class Layer(Generic[MatrixT, NormT]):
    """One layer. up: with a gate two matrices in one, the gate's first. Norms that a family has not are None.

    A layer of experts has no up and down of its own; router: a row for each of its experts.
    """

    attention_norm: NormT | None
    qkv: MatrixT
    out: MatrixT
    mlp_norm: NormT | None
    up: MatrixT | None
    down: MatrixT | None
    post_attention_norm: NormT | None = None
    post_mlp_norm: NormT | None = None
    q_norm: NormT | None = None
    k_norm: NormT | None = None
    router: MatrixT | None = None
    experts: Sequence[Expert[MatrixT]] = ()


@dataclass(frozen=True, slots=True)
class Weights(Generic[MatrixT, NormT, TableT]):
    """All weights of a model. positions: the learned ones, or None."""

    embedding: TableT
    positions: TableT | None
    layers: Sequence[Layer[MatrixT, NormT]]
    norm: NormT
    head: MatrixT
    embedding_norm: NormT | None = None


@dataclass(frozen=True, slots=True)
class PartWeights(Generic[MatrixT, NormT, TableT]):
    """The weights of a `Part`: embedding and positions belong to the first layers, norm and head to the last ones.

    head_table: the rows of a tied head, where the builder wants them and the embedding belongs to another part.
    """

    embedding: TableT | None
    positions: TableT | None
    layers: Sequence[Layer[MatrixT, NormT]]
    norm: NormT | None
    head: MatrixT | None
    head_table: TableT | None
    embedding_norm: NormT | None = None


class WeightsBuilder(Protocol[MatrixT, NormT, TableT]):
    """Makes pieces, one at a time: a parameter is read when the builder asks for it, and may be let go afterwards."""

    def norm(self, weight: Floats, bias: Floats | None) -> NormT: ...

    def matrix(self, parts: Sequence[Parameter], biases: Sequence[Floats] | None, gated: bool = False) -> MatrixT:
        """y = x W^T + b with W the parts on top of each other. gated: they are the gate and what it multiplies."""

    def router(self, rows: Parameter) -> MatrixT:
        """A matrix that decides: its numbers stay as exact as the files have them."""

    def table(self, rows: Parameter) -> TableT:
        """Rows that are looked up by number."""

    def tied(self, table: Parameter) -> tuple[TableT, MatrixT]:
        """A table that is the output head as well."""

    def tied_head(self, rows: Parameter) -> tuple[MatrixT, TableT | None]:
        """The head of a model whose embedding, of which these are rows, is elsewhere; and the rows if they matter."""


class Nothing:
    """A WeightsBuilder for what other workers have: it asks for no numbers."""

    def norm(self, weight: Floats, bias: Floats | None) -> None: ...
    def matrix(self, parts: Sequence[Parameter], biases: Sequence[Floats] | None, gated: bool = False) -> None: ...
    def router(self, rows: Parameter) -> None: ...
    def table(self, rows: Parameter) -> None: ...
    def tied(self, table: Parameter) -> tuple[None, None]:
        return None, None

    def tied_head(self, rows: Parameter) -> tuple[None, None]:
        return None, None
