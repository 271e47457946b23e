"""EncoderDecoderSpec: every size and option of the skeleton with two stacks, and nothing about files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from orcaserve.model.spec import NormKind

Positions = Literal["relative", "learned", "sinusoidal"]


@dataclass(frozen=True, slots=True)
class StackSpec:
    """The sizes of one stack."""

    n_layers: int
    n_heads: int
    head_dim: int
    intermediate_size: int

    @property
    def heads_size(self) -> int:
        """Numbers of all heads together."""
        return self.n_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class EncoderDecoderSpec:
    """One model's sizes and options.

    source_length: most tokens that the encoder reads; output_length: most that the decoder does, its start included.
    pre_norm: norms stand before attention and MLP; else behind the sum with what went past these.
    bias: all Linears but the head have one.
    positions: relative: a number for each head is added to the scores, which depends on the distance of the two tokens
    alone; learned: rows of a table, from position_offset on; sinusoidal: rows that are worked out.
    n_buckets, max_distance: distances that share a number, and from where on all do (relative).
    embedding_scale: factor of a token's row. attention_scale: of the scores; None = 1 / sqrt(head_dim).
    output_scale: of the hidden states before the head.
    tied: the head is the embedding. None: it is if the files have no head.
    start: the token that the decoder begins with. first: the token that it puts out first, whatever it computes; None:
    that which it computes. never: tokens that are not put out while there is another one.
    eos_ids: ids that end a text by default.
    """

    vocab_size: int
    source_length: int
    output_length: int
    hidden_size: int
    encoder: StackSpec
    decoder: StackSpec
    norm: NormKind
    norm_eps: float
    pre_norm: bool
    bias: bool
    activation: str
    gated: bool
    positions: Positions
    tied: bool | None
    start: int
    n_buckets: int = 0
    max_distance: int = 0
    position_offset: int = 0
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    output_scale: float = 1.0
    first: int | None = None
    never: frozenset[int] = frozenset()
    eos_ids: frozenset[int] = frozenset()

    def score_scale(self, stack: StackSpec) -> float:
        """The factor of a stack's attention scores."""
        return 1 / math.sqrt(stack.head_dim) if self.attention_scale is None else self.attention_scale

    @property
    def n_stacked(self) -> int:
        """Layers of both stacks."""
        return self.encoder.n_layers + self.decoder.n_layers

    @property
    def layer_weights(self) -> int:
        """Of those matrices of one layer of the decoder through which each of its tokens goes: for the keys and values
        of cross-attention only a source goes through some."""
        mlp = (3 if self.gated else 2) * self.decoder.intermediate_size
        return self.hidden_size * (6 * self.decoder.heads_size + mlp)

    @property
    def head_weights(self) -> int:
        return self.hidden_size * self.vocab_size

    @property
    def context_length(self) -> int:
        """Most tokens of one request, on both sides."""
        return self.source_length + self.output_length

    # What a slot of the K/V region holds: key and value of one token over all layers of the decoder. A token of the
    # decoder's has them for self-attention, one of the encoder's for cross-attention.

    @property
    def n_layers(self) -> int:
        return self.decoder.n_layers

    @property
    def n_kv_heads(self) -> int:
        return self.decoder.n_heads

    @property
    def head_dim(self) -> int:
        return self.decoder.head_dim

    @property
    def kv_size(self) -> int:
        return self.decoder.heads_size
