"""Gemma 1, 2 and 3 (text): a scaled embedding and norms that store their weights less 1.

Gemma 2: norms around attention and MLP, soft caps, a window in every other layer. Gemma 3: no caps, but norms of
queries and keys, and a window in five of six layers, in which positions turn at another base.
"""

from __future__ import annotations

import math
from dataclasses import replace

from orcaserve.model.families.family import GGUF_NAMES, Family
from orcaserve.model.families.llama import LLAMA_NAMES, llama_spec
from orcaserve.model.families.settings import Settings, layer_windows, rope_spec
from orcaserve.model.spec import ModelSpec


def _gemma(settings: Settings) -> ModelSpec:
    settings.refuse("use_bidirectional_attention", False)
    settings = settings.with_defaults(head_dim=256, tie_word_embeddings=True, max_position_embeddings=8192)
    spec = llama_spec(settings)
    return replace(spec, embedding_scale=math.sqrt(spec.hidden_size))


def _gemma1(settings: Settings) -> ModelSpec:
    settings.refuse("hidden_activation", "gelu_pytorch_tanh")
    spec = _gemma(settings.with_defaults(hidden_act="gelu"))
    return (
        replace(spec, activation="gelu_pytorch_tanh") if spec.activation == "gelu" else spec
    )  # the first files mean this


def _sandwiched(settings: Settings) -> ModelSpec:
    """Gemma 2 and 3."""
    return replace(
        _gemma(settings),
        activation=settings.text("hidden_activation", "gelu_pytorch_tanh"),
        post_norm=True,
        attention_scale=settings.number("query_pre_attn_scalar", 256) ** -0.5,
        attention_softcap=settings.maybe_number("attn_logit_softcapping") or 0.0,
        logit_softcap=settings.maybe_number("final_logit_softcapping") or 0.0,
    )


def _gemma2(settings: Settings) -> ModelSpec:
    settings = settings.with_defaults(sliding_window=4096, attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
    spec = _sandwiched(settings)
    return replace(spec, windows=layer_windows(settings, spec.n_layers, lambda i: i % 2 == 0))


def _gemma3(settings: Settings) -> ModelSpec:
    settings.refuse("attn_logit_softcapping")  # transformers reads it and does nothing: nobody knows what is meant
    settings = settings.with_defaults(sliding_window=4096, max_position_embeddings=131_072, rope_theta=1e6)
    spec, pattern = _sandwiched(settings), settings.size("sliding_window_pattern", 6)
    near = {"rope_parameters": settings.get("rope_parameters"), "rope_theta": settings.get("rope_local_base_freq")}
    length = spec.context_length
    return replace(
        spec,
        qk_norm="head",
        windows=layer_windows(settings, spec.n_layers, lambda i: (i + 1) % pattern > 0),
        rope=rope_spec(settings, spec.head_dim, length, "full_attention"),
        local_rope=rope_spec(Settings(near), spec.head_dim, length, "sliding_attention"),
    )


GEMMA = Family(
    title="Gemma 1",
    model_types=("gemma",),
    architectures=("gemma",),
    spec=_gemma1,
    safetensors=replace(LLAMA_NAMES, norm_offset=1.0),
    gguf=GGUF_NAMES,
    example="google/gemma-2b-it",
    special="scaled embeddings",
)
GEMMA2 = Family(
    title="Gemma 2",
    model_types=("gemma2",),
    architectures=("gemma2",),
    spec=_gemma2,
    safetensors=replace(
        GEMMA.safetensors,
        post_attention_norm="post_attention_layernorm",
        mlp_norm="pre_feedforward_layernorm",
        post_mlp_norm="post_feedforward_layernorm",
    ),
    gguf=replace(GGUF_NAMES, post_attention_norm="post_attention_norm", post_mlp_norm="post_ffw_norm"),
    example="google/gemma-2-2b-it",
    special="norms on both sides of attention and MLP; soft caps; a sliding window in every other layer",
)
GEMMA3 = Family(
    title="Gemma 3 (text)",
    model_types=("gemma3_text",),
    architectures=("gemma3",),
    spec=_gemma3,
    safetensors=replace(GEMMA2.safetensors, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm"),
    gguf=replace(GEMMA2.gguf or GGUF_NAMES, q_norm="attn_q_norm", k_norm="attn_k_norm"),
    example="google/gemma-3-270m-it",
    special="norms of queries and keys; a sliding window in five of six layers, with positions of their own",
)
