"""BLOOM: ALiBi in the place of positions, a norm of the embedding, queries, keys and values head by head."""

from __future__ import annotations

from dataclasses import replace

from orcaserve.model.families.alibi import slopes
from orcaserve.model.families.family import GGUF_NAMES, Family, Names
from orcaserve.model.families.settings import Settings, head_size
from orcaserve.model.spec import ModelSpec


def _spec(settings: Settings) -> ModelSpec:
    settings = settings.renamed(
        hidden_size="n_embed",
        num_hidden_layers="n_layer",
        num_attention_heads="n_head",
        seq_length="max_position_embeddings",
        layer_norm_epsilon="layer_norm_eps",
    )
    settings.refuse("apply_residual_connection_post_layernorm", False)
    settings.refuse("slow_but_exact", False)
    hidden, heads = settings.size("hidden_size"), settings.size("num_attention_heads")
    return ModelSpec(
        vocab_size=settings.size("vocab_size"),
        context_length=settings.size("seq_length", 2048),
        hidden_size=hidden,
        n_layers=settings.size("num_hidden_layers"),
        n_heads=heads,
        n_kv_heads=heads,
        head_dim=head_size(settings, heads),
        intermediate_size=4 * hidden,
        norm="layer",
        norm_eps=settings.number("layer_norm_epsilon", 1e-5),
        activation="gelu_new",
        gated=False,
        tied=settings.flag("tie_word_embeddings", True),
        rope=None,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        alibi=slopes(heads),
        embedding_norm=True,
    )


BLOOM = Family(
    title="BLOOM",
    model_types=("bloom",),
    architectures=("bloom",),
    spec=_spec,
    safetensors=Names(
        embedding="word_embeddings",
        embedding_norm="word_embeddings_layernorm",
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
    gguf=replace(GGUF_NAMES, embedding_norm="token_embd_norm", qkv=("attn_qkv",), up=("ffn_up",)),
    example="bigscience/bloomz-560m",
    special="ALiBi; a norm of the embedding",
)
