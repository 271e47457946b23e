"""ModelSpec and RopeSpec: every size and option of the Transformer skeleton, and nothing about files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

NormKind = Literal["rms", "layer"]  # RMSNorm has no bias here, LayerNorm has one
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
# The names that transformers and GGUF give to activations.
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """How positions turn queries and keys. Options beyond `theta` belong to some kinds only.

    kind: default, linear, dynamic, yarn, longrope, llama3, proportional, or divisors (GGUF's worked-out factors).
    dim: dimensions of a head that are turned, from its first one on.
    head_dim: dimensions of a head; `proportional` spaces its frequencies by it.
    trained_length: positions the model was trained for, before any scaling.
    amplitude: factor of the turned queries and keys (yarn, longrope); None = what the kind works out itself.
    """

    dim: int
    head_dim: int
    trained_length: int
    kind: str = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    amplitude: float | None = None
    amplitude_multiplier: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mscale: float | None = None
    mscale_all_dim: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    turned_share: float = 1.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model's sizes and options.

    rope: None for learned positions, of which there are then context_length.
    activation: one of the keys of ACTIVATIONS.
    gated: the MLP's first matrix is two, and one's activation multiplies the other.
    tied: the output head is the embedding. attention_scale: factor of the scores; None = 1 / sqrt(head_dim).
    eos_ids: ids that end a text by default.
    """

    vocab_size: int
    context_length: int
    hidden_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm: NormKind
    norm_eps: float
    activation: str
    gated: bool
    tied: bool
    rope: RopeSpec | None
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    attention_scale: float | None = None
    eos_ids: frozenset[int] = frozenset()
    windows: tuple[int, ...] = ()

    @property
    def q_size(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.n_kv_heads * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Of the matrices of one layer."""
        mlp = (3 if self.gated else 2) * self.intermediate_size
        return self.hidden_size * (2 * self.q_size + 2 * self.kv_size + mlp)

    @property
    def head_weights(self) -> int:
        return self.hidden_size * self.vocab_size

    @property
    def score_scale(self) -> float:
        """The factor of the attention scores."""
        return 1 / math.sqrt(self.head_dim) if self.attention_scale is None else self.attention_scale
