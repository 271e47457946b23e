"""OLMo 2: Llama with norms behind attention and MLP and none before, and of all queries or keys of a token together."""

from __future__ import annotations

from dataclasses import replace

from orcaserve.model.families.family import GGUF_NAMES, Family
from orcaserve.model.families.llama import LLAMA_NAMES, llama_spec
from orcaserve.model.families.settings import Settings
from orcaserve.model.spec import ModelSpec


def _spec(settings: Settings) -> ModelSpec:
    spec = llama_spec(settings.with_defaults(rms_norm_eps=1e-5))
    return replace(spec, pre_norm=False, post_norm=True, qk_norm="all")


OLMO2 = Family(
    title="OLMo 2",
    model_types=("olmo2",),
    architectures=("olmo2",),
    spec=_spec,
    safetensors=replace(
        LLAMA_NAMES,
        post_attention_norm="post_attention_layernorm",
        post_mlp_norm="post_feedforward_layernorm",
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
    ),
    gguf=replace(
        GGUF_NAMES,
        post_attention_norm="post_attention_norm",
        post_mlp_norm="post_ffw_norm",
        q_norm="attn_q_norm",
        k_norm="attn_k_norm",
    ),
    example="allenai/OLMo-2-0425-1B-Instruct",
    special="norms behind attention and MLP alone; of all queries or keys together, so not with tensor parallelism",
)
