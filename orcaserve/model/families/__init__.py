"""The families of models that can be run, one small file each."""

from __future__ import annotations

from orcaserve.core.errors import UnsupportedModel
from orcaserve.model.families.family import Family, Names
from orcaserve.model.families.gpt2 import GPT2
from orcaserve.model.families.llama import LLAMA

FAMILIES: tuple[Family, ...] = (LLAMA, GPT2)

__all__ = ["FAMILIES", "Family", "Names", "family_of"]


def family_of(model_type: object) -> Family:
    """The family that reads `model_type`. Raises UnsupportedModel, naming those that are supported."""
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    supported = ", ".join(name for family in FAMILIES for name in family.model_types)
    raise UnsupportedModel(f"models of type {model_type!r} are not supported; {supported} are")
