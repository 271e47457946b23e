"""The families of encoder-decoder models that can be run."""

from __future__ import annotations

from pathlib import Path

from orcaserve.checkpoint.json_object import read_object
from orcaserve.core.errors import ModelError, UnsupportedModel
from orcaserve.model.encoder_decoder.family import EncoderDecoderFamily
from orcaserve.model.families.bart import BART
from orcaserve.model.families.marian import MARIAN
from orcaserve.model.families.t5 import T5

ENCODER_DECODER_FAMILIES: tuple[EncoderDecoderFamily, ...] = (T5, BART, MARIAN)


def encoder_decoder_family_of(model_type: object) -> EncoderDecoderFamily:
    """The family that reads `model_type`. Raises UnsupportedModel, naming those that are supported."""
    for family in ENCODER_DECODER_FAMILIES:
        if model_type in family.model_types:
            return family
    supported = ", ".join(name for family in ENCODER_DECODER_FAMILIES for name in family.model_types)
    raise UnsupportedModel(f"encoder-decoder models of type {model_type!r} are not supported; {supported} are")


def is_encoder_decoder(path: Path) -> bool:
    """Whether these are the files of a model with an encoder: a folder whose config.json says so, or names a family."""
    try:
        config = read_object(path / "config.json")
    except ModelError:
        return False  # another kind of file, or one that its reader will complain about
    return config.get("is_encoder_decoder") is True or any(
        config.get("model_type") in family.model_types for family in ENCODER_DECODER_FAMILIES
    )
