"""Phi-3 and Phi-4: Llama with stacked matrices, and positions that turn otherwise in long texts."""

from __future__ import annotations

from dataclasses import replace

from orcaserve.core.errors import UnsupportedModel
from orcaserve.model.families.family import GGUF_NAMES, Family
from orcaserve.model.families.llama import LLAMA_NAMES, llama_spec
from orcaserve.model.families.settings import Settings, layer_windows
from orcaserve.model.spec import ModelSpec


def _spec(settings: Settings) -> ModelSpec:
    settings = settings.with_defaults(
        rms_norm_eps=1e-5, max_position_embeddings=4096, original_max_position_embeddings=4096
    )
    spec = llama_spec(settings)
    assert spec.rope is not None
    if spec.rope.kind not in ("default", "longrope"):
        raise UnsupportedModel(f"phi3: rope kind {spec.rope.kind!r} is not supported; default and longrope are")
    return replace(spec, windows=layer_windows(settings, spec.n_layers))


PHI3 = Family(
    title="Phi-3, Phi-4",
    model_types=("phi3",),
    architectures=("phi3",),
    spec=_spec,
    safetensors=replace(LLAMA_NAMES, qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",)),
    gguf=replace(GGUF_NAMES, qkv=("attn_qkv",), up=("ffn_up",)),
    example="microsoft/Phi-4-mini-instruct",
    special="stacked matrices; partial rotary positions, of other frequencies in long texts (longrope)",
)
