"""OPT: GPT-2 with ReLU, and a table of positions whose first two rows belong to none."""

from __future__ import annotations

from orcaserve.model.families.family import Family, Names
from orcaserve.model.families.settings import Settings, head_size
from orcaserve.model.spec import ModelSpec


def _spec(settings: Settings) -> ModelSpec:
    hidden, heads = settings.size("hidden_size"), settings.size("num_attention_heads")
    settings.refuse("do_layer_norm_before", True)
    settings.refuse("word_embed_proj_dim", hidden)
    settings.refuse("layer_norm_elementwise_affine", True)
    settings.refuse("_remove_final_layer_norm", False)
    bias = settings.flag("enable_bias", True)
    return ModelSpec(
        vocab_size=settings.size("vocab_size"),
        context_length=settings.size("max_position_embeddings", 2048),
        hidden_size=hidden,
        n_layers=settings.size("num_hidden_layers"),
        n_heads=heads,
        n_kv_heads=heads,
        head_dim=head_size(settings, heads),
        intermediate_size=settings.size("ffn_dim"),
        norm="layer",
        norm_eps=1e-5,
        activation=settings.text("activation_function", "relu"),
        gated=False,
        tied=settings.flag("tie_word_embeddings", True),
        rope=None,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
    )


OPT = Family(
    title="OPT",
    model_types=("opt",),
    spec=_spec,
    safetensors=Names(
        embedding="decoder.embed_tokens",
        positions="decoder.embed_positions",
        skipped_positions=2,
        layer="decoder.layers.{i}.",
        attention_norm="self_attn_layer_norm",
        qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        out="self_attn.out_proj",
        mlp_norm="final_layer_norm",
        up=("fc1",),
        down="fc2",
        norm="decoder.final_layer_norm",
        head="lm_head",
        prefix="model.",
    ),
    example="facebook/opt-125m",
    special="learned positions, ReLU; not opt-350m, whose norms and embedding are others",
)
