"""Qwen3: Llama with norms of queries and keys, head by head."""

from __future__ import annotations

from dataclasses import replace

from orcaserve.model.families.family import GGUF_NAMES, Family
from orcaserve.model.families.llama import LLAMA_NAMES, llama_spec, qwen2_windows
from orcaserve.model.families.settings import Settings
from orcaserve.model.spec import ModelSpec


def _spec(settings: Settings) -> ModelSpec:
    spec = qwen2_windows(settings, llama_spec(settings.with_defaults(head_dim=128)))
    return replace(spec, qk_norm="head")


QWEN3 = Family(
    title="Qwen3",
    model_types=("qwen3",),
    architectures=("qwen3",),
    spec=_spec,
    safetensors=replace(LLAMA_NAMES, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm"),
    gguf=replace(GGUF_NAMES, q_norm="attn_q_norm", k_norm="attn_k_norm"),
    example="Qwen/Qwen3-0.6B",
    special="norms of queries and keys, head by head",
)
