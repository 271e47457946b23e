"""GPT-NeoX and Pythia: attention and MLP side by side, queries, keys and values stored head by head."""

from __future__ import annotations

from dataclasses import replace

from orcaserve.model.families.family import GGUF_NAMES, Family, Names
from orcaserve.model.families.settings import Settings, head_size, rope_spec
from orcaserve.model.spec import ModelSpec


def _spec(settings: Settings) -> ModelSpec:
    settings = settings.renamed(rope_theta="rotary_emb_base", partial_rotary_factor="rotary_pct")
    heads, length = settings.size("num_attention_heads"), settings.size("max_position_embeddings", 2048)
    head_dim, bias = head_size(settings, heads), settings.flag("attention_bias", True)
    return ModelSpec(
        vocab_size=settings.size("vocab_size"),
        context_length=length,
        hidden_size=settings.size("hidden_size"),
        n_layers=settings.size("num_hidden_layers"),
        n_heads=heads,
        n_kv_heads=heads,
        head_dim=head_dim,
        intermediate_size=settings.size("intermediate_size"),
        norm="layer",
        norm_eps=settings.number("layer_norm_eps", 1e-5),
        activation=settings.text("hidden_act", "gelu"),
        gated=False,
        tied=settings.flag("tie_word_embeddings", False),
        rope=rope_spec(settings.with_defaults(partial_rotary_factor=0.25), head_dim, length),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=True,
        parallel=settings.flag("use_parallel_residual", True),
    )


GPT_NEOX = Family(
    title="GPT-NeoX, Pythia",
    model_types=("gpt_neox",),
    architectures=("gptneox",),
    spec=_spec,
    safetensors=Names(
        embedding="embed_in",
        positions=None,
        layer="layers.{i}.",
        attention_norm="input_layernorm",
        qkv=("attention.query_key_value",),
        grouped=True,
        out="attention.dense",
        mlp_norm="post_attention_layernorm",
        up=("mlp.dense_h_to_4h",),
        down="mlp.dense_4h_to_h",
        norm="final_layer_norm",
        head="embed_out",
        prefix="gpt_neox.",
        ignored=(r"layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
    ),
    gguf=replace(GGUF_NAMES, qkv=("attn_qkv",), up=("ffn_up",)),
    example="EleutherAI/pythia-160m",
    special="attention and MLP side by side; partial rotary positions",
)
