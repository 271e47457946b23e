"""Llama and its kin: RMSNorm, rotary positions, grouped-query attention, SwiGLU. Mistral, Qwen2: other options."""

from __future__ import annotations

from dataclasses import replace

from orcaserve.core.errors import CheckpointError
from orcaserve.model.families.family import GGUF_NAMES, Family, Names
from orcaserve.model.families.settings import Settings, rope_spec
from orcaserve.model.spec import ModelSpec, RopeSpec


def _spec(settings: Settings) -> ModelSpec:
    kind = settings.text("model_type", "")
    settings.refuse("num_local_experts", 0)
    hidden, heads = settings.size("hidden_size"), settings.size("num_attention_heads")
    if settings.get("head_dim") is None and hidden % heads:
        raise CheckpointError(f"config: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    head_dim = settings.size("head_dim", hidden // heads)
    trained_length = settings.size("max_position_embeddings", 2048)
    rope = rope_spec(settings, head_dim, trained_length)
    bias = settings.flag("attention_bias", False)
    return ModelSpec(
        vocab_size=settings.size("vocab_size"),
        context_length=_context_length(settings, kind, rope),
        hidden_size=hidden,
        n_layers=settings.size("num_hidden_layers"),
        n_heads=heads,
        n_kv_heads=settings.size("num_key_value_heads", heads),
        head_dim=head_dim,
        intermediate_size=settings.size("intermediate_size"),
        norm="rms",
        norm_eps=settings.number("rms_norm_eps", 1e-6),
        activation=settings.text("hidden_act", "silu"),
        gated=True,
        tied=settings.flag("tie_word_embeddings", False),
        rope=rope,
        qkv_bias=bias or kind == "qwen2",
        out_bias=bias,
        mlp_bias=settings.flag("mlp_bias", False),
        windows=_windows(settings, kind),
    )


def _windows(settings: Settings, kind: str) -> tuple[int, ...]:
    if kind != "mistral" or settings.get("sliding_window") is None:
        return ()
    return (settings.size("sliding_window"),) * settings.size("num_hidden_layers")


def _context_length(settings: Settings, kind: str, rope: RopeSpec) -> int:
    """The longest text. Qwen2's windows, of some layers, are not known here: its texts are no longer than they are."""
    length = settings.size("max_position_embeddings", 2048)
    if rope.kind == "dynamic":
        length = int(length * rope.factor)
    windowed = kind == "qwen2" and settings.flag("use_sliding_window", False)
    if windowed and settings.get("sliding_window") is not None:
        return min(length, settings.size("sliding_window"))
    return length


LLAMA = Family(
    name="llama",
    model_types=("llama", "mistral", "qwen2"),
    spec=_spec,
    safetensors=Names(
        embedding="embed_tokens",
        positions=None,
        layer="layers.{i}.",
        attention_norm="input_layernorm",
        qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        out="self_attn.o_proj",
        mlp_norm="post_attention_layernorm",
        up=("mlp.gate_proj", "mlp.up_proj"),
        down="mlp.down_proj",
        norm="norm",
        head="lm_head",
        prefix="model.",
        ignored=(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
    ),
    gguf=replace(GGUF_NAMES, interleaved=frozenset({"llama"})),
)
