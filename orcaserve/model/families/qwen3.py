"""Qwen3: Llama with norms of queries and keys, head by head; and with experts."""

from __future__ import annotations

from dataclasses import replace

from orcaserve.model.families.family import GGUF_NAMES, Family
from orcaserve.model.families.llama import LLAMA_NAMES, llama_spec, qwen2_windows
from orcaserve.model.families.mixtral import with_experts
from orcaserve.model.families.settings import Settings
from orcaserve.model.spec import ModelSpec


def _spec(settings: Settings) -> ModelSpec:
    spec = qwen2_windows(settings, llama_spec(settings.with_defaults(head_dim=128)))
    return replace(spec, qk_norm="head")


def _moe(settings: Settings) -> ModelSpec:
    settings = settings.renamed(num_local_experts="num_experts")
    settings.refuse("decoder_sparse_step", 1)
    settings.refuse("mlp_only_layers", [])
    spec = _spec(settings.without("num_local_experts"))
    spec = with_experts(settings.with_defaults(num_local_experts=128, num_experts_per_tok=8), spec)
    return replace(
        spec,
        intermediate_size=settings.size("moe_intermediate_size", 768),
        shares_of_chosen=settings.flag("norm_topk_prob", False),
    )


_NAMES = replace(LLAMA_NAMES, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")
QWEN3 = Family(
    title="Qwen3",
    model_types=("qwen3",),
    architectures=("qwen3",),
    spec=_spec,
    safetensors=_NAMES,
    gguf=replace(GGUF_NAMES, q_norm="attn_q_norm", k_norm="attn_k_norm"),
    example="Qwen/Qwen3-0.6B",
    special="norms of queries and keys, head by head",
)
QWEN3_MOE = Family(
    title="Qwen3-MoE",
    model_types=("qwen3_moe",),
    spec=_moe,
    safetensors=replace(
        _NAMES,
        router="mlp.gate",
        up=("mlp.experts.{e}.gate_proj", "mlp.experts.{e}.up_proj"),
        down="mlp.experts.{e}.down_proj",
    ),
    example="Qwen/Qwen3-30B-A3B",
    special="norms of queries and keys, head by head; experts in every layer",
)
