"""Llama and its kin: RMSNorm, rotary positions, grouped-query attention, SwiGLU. Mistral, Qwen2: other options."""

from __future__ import annotations

from dataclasses import replace

from orcaserve.model.families.family import GGUF_NAMES, Family, Names
from orcaserve.model.families.settings import Settings, head_size, layer_windows, rope_spec
from orcaserve.model.spec import ModelSpec, RopeSpec


def llama_spec(settings: Settings) -> ModelSpec:
    """Of a config with Llama's keys; kin change what differs."""
    settings.refuse("num_local_experts", 0)
    heads, n_layers = settings.size("num_attention_heads"), settings.size("num_hidden_layers")
    head_dim = head_size(settings, heads)
    rope = rope_spec(settings, head_dim, settings.size("max_position_embeddings", 2048))
    bias = settings.flag("attention_bias", False)
    return ModelSpec(
        vocab_size=settings.size("vocab_size"),
        context_length=_context_length(settings, rope),
        hidden_size=settings.size("hidden_size"),
        n_layers=n_layers,
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
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=settings.flag("mlp_bias", False),
    )


def _context_length(settings: Settings, rope: RopeSpec) -> int:
    """The longest text."""
    length = settings.size("max_position_embeddings", 2048)
    return int(length * rope.factor) if rope.kind == "dynamic" else length


def _mistral(settings: Settings) -> ModelSpec:
    spec = llama_spec(settings)
    return replace(spec, windows=layer_windows(settings, spec.n_layers))


def qwen2_windows(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Windows in the layers from max_window_layers on, if they are used at all."""
    if not settings.flag("use_sliding_window", False):
        return spec
    first = settings.size("max_window_layers", 28, least=0)
    return replace(spec, windows=layer_windows(settings, spec.n_layers, lambda i: i >= first))


def _qwen2(settings: Settings) -> ModelSpec:
    return replace(qwen2_windows(settings, llama_spec(settings)), qkv_bias=True)


LLAMA_NAMES = Names(
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
)

LLAMA = Family(
    title="Llama 1, 2, 3; SmolLM 1, 2",
    model_types=("llama",),
    architectures=("llama",),
    spec=llama_spec,
    safetensors=LLAMA_NAMES,
    gguf=replace(GGUF_NAMES, interleaved=True),
    example="HuggingFaceTB/SmolLM2-135M-Instruct",
)
MISTRAL = Family(
    title="Mistral",
    model_types=("mistral",),
    spec=_mistral,
    safetensors=LLAMA_NAMES,
    example="mistralai/Mistral-7B-v0.1",
    special="a sliding window in every layer, if sliding_window is set; in GGUF these are of the architecture llama",
)
QWEN2 = Family(
    title="Qwen2, Qwen2.5",
    model_types=("qwen2",),
    architectures=("qwen2",),
    spec=_qwen2,
    safetensors=LLAMA_NAMES,
    gguf=GGUF_NAMES,
    example="Qwen/Qwen2.5-0.5B-Instruct",
    special="biases of queries, keys and values; sliding windows in the last layers, if use_sliding_window is set",
)
