"""Mixtral: Mistral whose layers have several MLPs, the experts, of which every token takes some."""

from __future__ import annotations

from dataclasses import replace

from orcaserve.model.families.family import GGUF_NAMES, Family
from orcaserve.model.families.llama import LLAMA_NAMES, llama_spec
from orcaserve.model.families.settings import Settings, layer_windows
from orcaserve.model.spec import ModelSpec


def _spec(settings: Settings) -> ModelSpec:
    spec = llama_spec(settings.without("num_local_experts"))
    return replace(with_experts(settings, spec), windows=layer_windows(settings, spec.n_layers))


def with_experts(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """As many as num_local_experts says, of which num_experts_per_tok are chosen."""
    n = settings.size("num_local_experts", 8)
    chosen = settings.size("num_experts_per_tok", 2, most=n)
    return replace(spec, n_experts=n, n_chosen=chosen, expert_size=spec.intermediate_size)


EXPERTS_OF_GGUF = replace(
    GGUF_NAMES, router="ffn_gate_inp", expert_up=("ffn_gate.{e}", "ffn_up.{e}"), expert_down="ffn_down.{e}"
)
MIXTRAL = Family(
    title="Mixtral",
    model_types=("mixtral",),
    architectures=("llama with experts",),
    spec=_spec,
    safetensors=replace(
        LLAMA_NAMES,
        router="block_sparse_moe.gate",
        expert_up=("block_sparse_moe.experts.{e}.w1", "block_sparse_moe.experts.{e}.w3"),
        expert_down="block_sparse_moe.experts.{e}.w2",
    ),
    gguf=replace(EXPERTS_OF_GGUF, interleaved=True),
    example="mistralai/Mixtral-8x7B-Instruct-v0.1",
    special="experts: several MLPs a layer, of which each token takes some",
)
