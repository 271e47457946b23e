"""ModelSpec and RopeSpec: every size and option of the Transformer skeleton, and nothing about files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

NormKind = Literal["rms", "layer"]  # RMSNorm has no bias here, LayerNorm has one (of zeros, if the files have none)
QKNorm = Literal["head", "all"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
# The names that transformers and GGUF give to activations.
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
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
    """One model's sizes and options. What comes after `eos_ids` most families leave as it is.

    rope: None for learned positions, of which there are then context_length, and for `alibi`.
    activation: one of the keys of ACTIVATIONS.
    gated: the MLP's first matrix is two, and one's activation multiplies the other.
    tied: the output head is the embedding. attention_scale: factor of the scores; None = 1 / sqrt(head_dim).
    eos_ids: ids that end a text by default.

    pre_norm: attention and MLP read norms of the residual stream. post_norm: norms of what they give are added to it.
    parallel: the MLP reads the layer's input, not what attention has added to; shared_norm: by attention's own norm.
    norm_bias: files have LayerNorm's biases. head_bias: and one of the output head.
    qk_norm: queries and keys are normed before they are turned: head by head, with the same weights for every head, or
    all heads of a token together.
    windows: per layer, to how many tokens back (itself counted) a token attends, 0 = to all; () = all layers to all.
    local_rope: how positions turn in layers with a window, if not as in the others.
    unturned: layers in which positions turn nothing.
    alibi: per head, what is taken off a score (scaled already) for each token between query and key; () = nothing.
    attention_softcap, logit_softcap: c, where scores or logits x become c tanh(x / c); 0 = as they are.
    embedding_scale, residual_scale, logit_scale: factors of the embedding, of whatever is added to the residual stream,
    and of the logits (before their softcap).
    embedding_norm: the embedding is normed.
    stored_head_dim: dimensions of a head in the files, where heads are filled up with zeros (filled_heads.py).
    n_experts: MLPs of a layer, of expert_size columns each, of which a router chooses n_chosen for a token; 0: one MLP,
    for all tokens. shares_of_chosen: the weights of those chosen sum to 1, rather than those of all.
    dense_layers: those that have one MLP all the same, of intermediate_size columns.
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
    pre_norm: bool = True
    post_norm: bool = False
    parallel: bool = False
    shared_norm: bool = False
    norm_bias: bool = True
    head_bias: bool = False
    qk_norm: QKNorm | None = None
    windows: tuple[int, ...] = ()
    local_rope: RopeSpec | None = None
    unturned: tuple[int, ...] = ()
    alibi: tuple[float, ...] = ()
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    embedding_norm: bool = False
    stored_head_dim: int | None = None
    n_experts: int = 0
    n_chosen: int = 0
    expert_size: int = 0
    shares_of_chosen: bool = True
    dense_layers: tuple[int, ...] = ()

    @property
    def q_size(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.n_kv_heads * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Of the matrices of one layer; of the largest, if some have experts."""
        experts = self.expert_size * self.n_experts
        mlp = (3 if self.gated else 2) * max(experts, self.mlp_sizes[0])
        return self.hidden_size * (2 * self.q_size + 2 * self.kv_size + mlp + self.n_experts)

    def has_experts(self, layer: int) -> bool:
        """A layer of the model."""
        return self.n_experts > 0 and layer not in self.dense_layers

    @property
    def mlp_sizes(self) -> tuple[int, ...]:
        """Columns of the MLPs that there are: of layers without experts, and of an expert."""
        experts = (self.expert_size,) if self.n_experts else ()
        dense = (self.intermediate_size,) if self.dense_layers or not self.n_experts else ()
        return dense + experts

    @property
    def head_weights(self) -> int:
        return self.hidden_size * self.vocab_size

    def window(self, layer: int) -> int:
        """Of a layer of the model, 0 = none."""
        return self.windows[layer] if self.windows else 0

    def rope_of(self, layer: int) -> RopeSpec | None:
        """How positions turn in a layer of the model."""
        if layer in self.unturned:
            return None
        return self.local_rope if self.local_rope is not None and self.window(layer) else self.rope

    @property
    def score_scale(self) -> float:
        """The factor of the attention scores."""
        return 1 / math.sqrt(self.head_dim) if self.attention_scale is None else self.attention_scale
