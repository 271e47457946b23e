"""The pieces that a model of two stacks is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from orcaserve.model.parameter import Floats
from orcaserve.model.weights import MatrixT, NormT, TableT


@dataclass(frozen=True, slots=True)
class Cross(Generic[MatrixT, NormT]):
    """Attention of the decoder to what the encoder made: queries are its own, keys and values (kv) the encoder's."""

    norm: NormT
    q: MatrixT
    kv: MatrixT
    out: MatrixT


@dataclass(frozen=True, slots=True)
class StackLayer(Generic[MatrixT, NormT]):
    """One layer. up: with a gate two matrices in one, the gate's first. cross: of the decoder's alone."""

    attention_norm: NormT
    qkv: MatrixT
    out: MatrixT
    cross: Cross[MatrixT, NormT] | None
    mlp_norm: NormT
    up: MatrixT
    down: MatrixT


@dataclass(frozen=True, slots=True)
class Stack(Generic[MatrixT, NormT, TableT]):
    """distances: [buckets, heads], of relative positions. What a model, or a part of it, does not have is None.

    In a part positions and embedding_norm are with the embedding, and the norm is with the stack's last layer.
    """

    positions: TableT | None
    distances: TableT | None
    embedding_norm: NormT | None
    layers: Sequence[StackLayer[MatrixT, NormT]]
    norm: NormT | None


@dataclass(frozen=True, slots=True)
class EncoderDecoderWeights(Generic[MatrixT, NormT, TableT]):
    """All weights of a model, or those of a part: the embedding is with the first layers, the head with the last ones.
    head_bias: [vocabulary], or None."""

    embedding: TableT | None
    encoder: Stack[MatrixT, NormT, TableT]
    decoder: Stack[MatrixT, NormT, TableT]
    head: MatrixT | None
    head_bias: Floats | None
