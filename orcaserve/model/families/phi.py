"""Phi-1, Phi-1.5, Phi-2: attention and MLP side by side behind one norm; biases everywhere, of the output head too."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from orcaserve.model.families.family import GGUF_NAMES, Family, Names
from orcaserve.model.families.llama import LLAMA_NAMES
from orcaserve.model.families.settings import Settings, head_size, rope_spec
from orcaserve.model.spec import ModelSpec


def _spec(settings: Settings) -> ModelSpec:
    heads, length = settings.size("num_attention_heads"), settings.size("max_position_embeddings", 2048)
    head_dim = head_size(settings, heads)
    return ModelSpec(
        vocab_size=settings.size("vocab_size"),
        context_length=length,
        hidden_size=settings.size("hidden_size"),
        n_layers=settings.size("num_hidden_layers"),
        n_heads=heads,
        n_kv_heads=settings.size("num_key_value_heads", heads),
        head_dim=head_dim,
        intermediate_size=settings.size("intermediate_size"),
        norm="layer",
        norm_eps=settings.number("layer_norm_eps", 1e-5),
        activation=settings.text("hidden_act", "gelu_new"),
        gated=False,
        tied=settings.flag("tie_word_embeddings", False),
        rope=rope_spec(settings.with_defaults(partial_rotary_factor=0.5), head_dim, length),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        parallel=True,
        shared_norm=True,
        head_bias=True,
        qk_norm="head" if settings.flag("qk_layernorm", False) else None,
    )


def _variant(names: Names, tensors: Collection[str]) -> Names:
    """Older GGUF files have one matrix for queries, keys and values."""
    return replace(names, qkv=("attn_qkv",)) if "blk.0.attn_qkv.weight" in tensors else names


PHI = Family(
    title="Phi-1, Phi-1.5, Phi-2",
    model_types=("phi",),
    architectures=("phi2",),
    spec=_spec,
    safetensors=replace(
        LLAMA_NAMES,
        out="self_attn.dense",
        up=("mlp.fc1",),
        down="mlp.fc2",
        norm="final_layernorm",
        q_norm="self_attn.q_layernorm",
        k_norm="self_attn.k_layernorm",
    ),
    gguf=replace(GGUF_NAMES, up=("ffn_up",)),
    variant=_variant,
    example="microsoft/phi-2",
    special="attention and MLP side by side behind one norm; partial rotary positions; a bias of the output head",
)
