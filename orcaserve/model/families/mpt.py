"""MPT: ALiBi in the place of positions, and no biases, not even LayerNorm's."""

from __future__ import annotations

from dataclasses import replace

from orcaserve.model.families.alibi import mpt_slopes
from orcaserve.model.families.family import GGUF_NAMES, Family, Names
from orcaserve.model.families.settings import Settings, head_size
from orcaserve.model.spec import ModelSpec


def _spec(settings: Settings) -> ModelSpec:
    settings = settings.renamed(
        hidden_size="d_model",
        num_hidden_layers="n_layers",
        num_attention_heads="n_heads",
        max_seq_len="max_position_embeddings",
        layer_norm_epsilon="layer_norm_eps",
    )
    settings.refuse("no_bias", True)
    settings.refuse("expansion_ratio", 4)
    settings.refuse("logit_scale")
    settings.refuse("norm_type", "low_precision_layernorm", "layernorm")
    attention = settings.inner("attn_config") or Settings({})
    attention.refuse("attn_type", "multihead_attention")
    for option in ("clip_qkv", "prefix_lm", "qk_ln"):
        attention.refuse(option, False)
    attention.refuse("alibi", True)
    attention.refuse("alibi_bias_max", 8)  # transformers takes 8 whatever it says
    hidden, heads = settings.size("hidden_size"), settings.size("num_attention_heads")
    return ModelSpec(
        vocab_size=settings.size("vocab_size"),
        context_length=settings.size("max_seq_len", 2048),
        hidden_size=hidden,
        n_layers=settings.size("num_hidden_layers"),
        n_heads=heads,
        n_kv_heads=heads,
        head_dim=head_size(settings, heads),
        intermediate_size=4 * hidden,
        norm="layer",
        norm_eps=settings.number("layer_norm_epsilon", 1e-5),
        activation="gelu",
        gated=False,
        tied=settings.flag("tie_word_embeddings", True),
        rope=None,
        norm_bias=False,
        attention_scale=attention.maybe_number("softmax_scale"),
        alibi=mpt_slopes(heads),
    )


MPT = Family(
    title="MPT",
    model_types=("mpt",),
    architectures=("mpt",),
    spec=_spec,
    safetensors=Names(
        embedding="wte",
        positions=None,
        layer="blocks.{i}.",
        attention_norm="norm_1",
        qkv=("attn.Wqkv",),
        out="attn.out_proj",
        mlp_norm="norm_2",
        up=("ffn.up_proj",),
        down="ffn.down_proj",
        norm="norm_f",
        head="lm_head",
        prefix="transformer.",
    ),
    gguf=replace(GGUF_NAMES, qkv=("attn_qkv",), up=("ffn_up",)),
    example="mosaicml/mpt-7b-instruct",
    special="ALiBi; no biases at all",
)
