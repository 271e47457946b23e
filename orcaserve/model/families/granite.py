"""Granite: Llama with factors of the embedding, of scores, of what layers add, and of the logits."""

from __future__ import annotations

from dataclasses import replace

from orcaserve.model.families.family import GGUF_NAMES, Family
from orcaserve.model.families.llama import LLAMA_NAMES, llama_spec
from orcaserve.model.families.settings import Settings
from orcaserve.model.spec import ModelSpec


def _spec(settings: Settings) -> ModelSpec:
    return replace(
        llama_spec(settings),
        attention_scale=settings.number("attention_multiplier", 1.0),
        embedding_scale=settings.number("embedding_multiplier", 1.0),
        residual_scale=settings.number("residual_multiplier", 1.0),
        logit_scale=1 / settings.number("logits_scaling", 1.0),
    )


GRANITE = Family(
    title="Granite 3",
    model_types=("granite",),
    architectures=("granite",),
    spec=_spec,
    safetensors=LLAMA_NAMES,
    gguf=replace(GGUF_NAMES, interleaved=True),
    example="ibm-granite/granite-3.3-2b-instruct",
    special="factors of embedding, scores, layers and logits",
)
