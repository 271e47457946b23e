"""StableLM: Llama with LayerNorm and partial rotary positions; in some, attention and MLP side by side."""

from __future__ import annotations

from dataclasses import replace

from orcaserve.model.families.family import GGUF_NAMES, Family
from orcaserve.model.families.llama import LLAMA_NAMES, llama_spec
from orcaserve.model.families.settings import Settings
from orcaserve.model.spec import ModelSpec


def _spec(settings: Settings) -> ModelSpec:
    settings.refuse("qk_layernorm", False)  # every head has weights of its own
    settings = settings.with_defaults(max_position_embeddings=4096, partial_rotary_factor=0.25)
    parallel = settings.flag("use_parallel_residual", False)
    return replace(
        llama_spec(settings),
        norm="layer",
        norm_eps=settings.number("layer_norm_eps", 1e-5),
        qkv_bias=settings.flag("use_qkv_bias", False),
        out_bias=False,
        mlp_bias=False,
        parallel=parallel,
        shared_norm=parallel,
    )


STABLELM = Family(
    title="StableLM",
    model_types=("stablelm",),
    architectures=("stablelm",),
    spec=_spec,
    safetensors=LLAMA_NAMES,
    gguf=GGUF_NAMES,
    example="stabilityai/stablelm-2-1_6b-chat",
    special="LayerNorm; partial rotary positions; attention and MLP side by side in some",
)
