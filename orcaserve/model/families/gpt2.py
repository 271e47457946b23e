"""GPT-2: LayerNorm, learned positions, GeLU, one matrix for queries, keys and values, stored [in, out]."""

from __future__ import annotations

from dataclasses import replace

from orcaserve.core.errors import CheckpointError
from orcaserve.model.families.family import GGUF_NAMES, Family, Names
from orcaserve.model.families.settings import Settings
from orcaserve.model.spec import ModelSpec


def _spec(settings: Settings) -> ModelSpec:
    hidden, heads = settings.size("n_embd"), settings.size("n_head")
    if hidden % heads:
        raise CheckpointError(f"config: n_embd {hidden} is not a multiple of n_head {heads}")
    settings.refuse("add_cross_attention", False)
    settings.refuse("scale_attn_by_inverse_layer_idx", False)
    return ModelSpec(
        vocab_size=settings.size("vocab_size"),
        context_length=settings.size("n_positions"),
        hidden_size=hidden,
        n_layers=settings.size("n_layer"),
        n_heads=heads,
        n_kv_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=settings.size("n_inner", 4 * hidden),
        norm="layer",
        norm_eps=settings.number("layer_norm_epsilon", 1e-5),
        activation=settings.text("activation_function", "gelu_new"),
        gated=False,
        tied=settings.flag("tie_word_embeddings", True),
        rope=None,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        attention_scale=None if settings.flag("scale_attn_weights", True) else 1.0,
    )


GPT2 = Family(
    title="GPT-2",
    model_types=("gpt2",),
    architectures=("gpt2",),
    spec=_spec,
    safetensors=Names(
        embedding="wte",
        positions="wpe",
        layer="h.{i}.",
        attention_norm="ln_1",
        qkv=("attn.c_attn",),
        out="attn.c_proj",
        mlp_norm="ln_2",
        up=("mlp.c_fc",),
        down="mlp.c_proj",
        norm="ln_f",
        head="lm_head",
        prefix="transformer.",
        transposed=True,
        ignored=(r"h\.\d+\.attn\.(bias|masked_bias)",),
    ),
    gguf=replace(GGUF_NAMES, positions="position_embd", qkv=("attn_qkv",), up=("ffn_up",)),
    example="openai-community/gpt2",
    special="learned positions",
)
