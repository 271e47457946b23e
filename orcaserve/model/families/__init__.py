"""The families of models that can be run, one small file each."""

from __future__ import annotations

from orcaserve.core.errors import UnsupportedModel
from orcaserve.model.families.bloom import BLOOM
from orcaserve.model.families.falcon import FALCON
from orcaserve.model.families.family import Family, Names
from orcaserve.model.families.gemma import GEMMA, GEMMA2, GEMMA3
from orcaserve.model.families.gpt2 import GPT2
from orcaserve.model.families.gpt_neox import GPT_NEOX
from orcaserve.model.families.gptj import GPTJ
from orcaserve.model.families.granite import GRANITE
from orcaserve.model.families.llama import LLAMA, MISTRAL, QWEN2
from orcaserve.model.families.mixtral import MIXTRAL
from orcaserve.model.families.mpt import MPT
from orcaserve.model.families.olmo2 import OLMO2
from orcaserve.model.families.opt import OPT
from orcaserve.model.families.phi import PHI
from orcaserve.model.families.phi3 import PHI3
from orcaserve.model.families.qwen3 import QWEN3, QWEN3_MOE
from orcaserve.model.families.smollm3 import SMOLLM3
from orcaserve.model.families.stablelm import STABLELM

FAMILIES: tuple[Family, ...] = (
    LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3, QWEN3_MOE, GEMMA, GEMMA2, GEMMA3, PHI3, SMOLLM3, GRANITE, OLMO2, STABLELM,
    GPT2, OPT, GPT_NEOX, GPTJ, BLOOM, FALCON, MPT, PHI,
)  # fmt: skip

__all__ = ["FAMILIES", "Family", "Names", "family_of"]


def family_of(model_type: object, file_format: str = "safetensors") -> Family:
    """The family that reads `model_type` in files of a format. Raises UnsupportedModel, naming those supported."""
    known: list[str] = []
    for family in FAMILIES:
        types = family.architectures if file_format == "gguf" else family.model_types
        if model_type in types:
            return family
        known += types
    where = " in GGUF" if file_format == "gguf" else ""
    text = f"models of type {model_type!r} are not supported{where}; {', '.join(known)} are"
    raise UnsupportedModel(f"{text} (`orcaserve models list --supported`)")
