"""SmolLM3: Llama in whose every fourth layer positions turn nothing."""

from __future__ import annotations

from dataclasses import replace

from orcaserve.core.errors import CheckpointError
from orcaserve.model.families.family import GGUF_NAMES, Family
from orcaserve.model.families.llama import LLAMA_NAMES, llama_spec
from orcaserve.model.families.settings import Settings, layer_windows
from orcaserve.model.spec import ModelSpec


def _spec(settings: Settings) -> ModelSpec:
    settings = settings.with_defaults(tie_word_embeddings=True, max_position_embeddings=32768, rope_theta=2e6)
    spec = llama_spec(settings)
    interval = settings.size("no_rope_layer_interval", 4)
    turned = settings.listed("no_rope_layers", spec.n_layers)  # in spite of its name, 1 = with positions
    if turned is None:
        turned = [int((i + 1) % interval > 0) for i in range(spec.n_layers)]
    if not all(value in (0, 1) for value in turned):
        raise CheckpointError("config: no_rope_layers must hold 0 and 1")
    unturned = tuple(i for i, value in enumerate(turned) if not value)
    windowed = settings.flag("use_sliding_window", False)
    windows = layer_windows(settings, spec.n_layers, lambda i: i in unturned)
    return replace(spec, unturned=unturned, windows=windows if windowed else ())


SMOLLM3 = Family(
    title="SmolLM3",
    model_types=("smollm3",),
    architectures=("smollm3",),
    spec=_spec,
    safetensors=LLAMA_NAMES,
    gguf=replace(GGUF_NAMES, interleaved=True),
    example="HuggingFaceTB/SmolLM3-3B",
    special="no positions in every fourth layer",
)
