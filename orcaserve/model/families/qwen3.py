"""Qwen3: Llama with norms of queries and keys, head by head; and with experts."""

from __future__ import annotations

from dataclasses import replace

from orcaserve.model.families.family import GGUF_NAMES, Family
from orcaserve.model.families.llama import LLAMA_NAMES, llama_spec, qwen2_windows
from orcaserve.model.families.mixtral import EXPERTS_OF_GGUF, with_experts
from orcaserve.model.families.settings import Settings
from orcaserve.model.spec import ModelSpec


def _spec(settings: Settings) -> ModelSpec:
    spec = qwen2_windows(settings, llama_spec(settings.with_defaults(head_dim=128)))
    return replace(spec, qk_norm="head")


def _moe(settings: Settings) -> ModelSpec:
    settings = settings.renamed(num_local_experts="num_experts")
    dense = _spec(settings.without("num_local_experts").with_defaults(intermediate_size=6144))
    spec = with_experts(settings.with_defaults(num_local_experts=128, num_experts_per_tok=8), dense)
    step, without = settings.size("decoder_sparse_step", 1), settings.layers("mlp_only_layers", spec.n_layers)
    dense_layers = tuple(i for i in range(spec.n_layers) if i in without or (i + 1) % step)
    if len(dense_layers) == spec.n_layers:
        return dense
    return replace(
        spec,
        dense_layers=dense_layers,
        expert_size=settings.size("moe_intermediate_size", 768),
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
    architectures=("qwen3moe",),
    spec=_moe,
    safetensors=replace(
        _NAMES,
        router="mlp.gate",
        expert_up=("mlp.experts.{e}.gate_proj", "mlp.experts.{e}.up_proj"),
        expert_down="mlp.experts.{e}.down_proj",
    ),
    gguf=replace(EXPERTS_OF_GGUF, q_norm="attn_q_norm", k_norm="attn_k_norm"),
    example="Qwen/Qwen3-30B-A3B",
    special="norms of queries and keys, head by head; experts, but for layers that the config names",
)
