"""Falcon: attention and MLP side by side, few K/V heads. The models called RW: one after the other, many, and ALiBi."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from orcaserve.model.families.alibi import slopes
from orcaserve.model.families.family import GGUF_NAMES, Family, Names
from orcaserve.model.families.settings import Settings, head_size, rope_spec
from orcaserve.model.spec import ModelSpec


def _spec(settings: Settings) -> ModelSpec:
    settings = settings.renamed(
        hidden_size="n_embed",
        num_hidden_layers="n_layer",
        num_attention_heads="n_head",
        num_kv_heads="n_head_kv",
        layer_norm_epsilon="layer_norm_eps",
    )
    hidden, heads = settings.size("hidden_size"), settings.size("num_attention_heads")
    head_dim, length = head_size(settings, heads), settings.size("max_position_embeddings", 2048)
    new = settings.flag("new_decoder_architecture", False)
    parallel = settings.flag("parallel_attn", True)
    settings.refuse("num_ln_in_parallel_attn", *((1, 2) if new else (1,)))
    if new:
        settings.refuse("parallel_attn", True)
    n_kv_heads = 1 if settings.flag("multi_query", True) and not new else settings.size("num_kv_heads", heads)
    alibi, bias = settings.flag("alibi", False), settings.flag("bias", False)
    return ModelSpec(
        vocab_size=settings.size("vocab_size"),
        context_length=length,
        hidden_size=hidden,
        n_layers=settings.size("num_hidden_layers"),
        n_heads=heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        intermediate_size=settings.size("ffn_hidden_size", 4 * hidden),
        norm="layer",
        norm_eps=settings.number("layer_norm_epsilon", 1e-5),
        activation=settings.text("activation", "gelu"),
        gated=False,
        tied=settings.flag("tie_word_embeddings", True),
        rope=None if alibi else rope_spec(settings, head_dim, length),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        parallel=parallel,
        shared_norm=parallel and (not new or settings.size("num_ln_in_parallel_attn", 2) == 1),
        # Slopes are rounded as they were in training, and scaled with the scores.
        alibi=tuple(_bfloat16(slope) / math.sqrt(head_dim) for slope in slopes(heads)) if alibi else (),
    )


def _bfloat16(number: float) -> float:
    """To the nearest number whose float32 has 16 zeros at the end; ties to even."""
    bits = int(np.float32(number).view(np.uint32))
    bits += 0x7FFF + (bits >> 16 & 1)
    return float(np.uint32(bits & 0xFFFF0000).view(np.float32))


def _variant(names: Names, tensors: Collection[str]) -> Names:
    """Of the large models, each half of a layer has its own norm."""
    if "blk.0.attn_norm_2.weight" in tensors:
        return replace(names, attention_norm="attn_norm_2", mlp_norm="attn_norm")
    if any(name.endswith("h.0.ln_attn.weight") for name in tensors):
        return replace(names, attention_norm="ln_attn", mlp_norm="ln_mlp")
    return names


FALCON = Family(
    title="Falcon",
    model_types=("falcon",),
    architectures=("falcon",),
    spec=_spec,
    safetensors=Names(
        embedding="word_embeddings",
        positions=None,
        layer="h.{i}.",
        attention_norm="input_layernorm",
        qkv=("self_attention.query_key_value",),
        grouped=True,
        out="self_attention.dense",
        mlp_norm="post_attention_layernorm",
        up=("mlp.dense_h_to_4h",),
        down="mlp.dense_4h_to_h",
        norm="ln_f",
        head="lm_head",
        prefix="transformer.",
    ),
    gguf=replace(GGUF_NAMES, qkv=("attn_qkv",), up=("ffn_up",)),
    variant=_variant,
    example="tiiuae/falcon-7b-instruct",
    special="attention and MLP side by side; one K/V head, or few; ALiBi in the models called RW",
)
