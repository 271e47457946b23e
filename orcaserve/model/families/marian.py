"""Marian (the OPUS-MT translators): as BART, with sinusoidal positions and without a norm behind the embedding."""

from __future__ import annotations

from dataclasses import replace

from orcaserve.core.errors import UnsupportedModel
from orcaserve.model.encoder_decoder.family import EncoderDecoderFamily, token_id
from orcaserve.model.encoder_decoder.spec import EncoderDecoderSpec
from orcaserve.model.families.bart import BART, bart_spec, without_embedding_norms
from orcaserve.model.families.settings import Settings


def _spec(settings: Settings) -> EncoderDecoderSpec:
    if not settings.flag("share_encoder_decoder_embeddings", True):
        raise UnsupportedModel("config: share_encoder_decoder_embeddings is false: two vocabularies are not supported")
    spec = bart_spec(settings)
    # Its decoder begins with the padding, which it never was to put out, and which nothing else forbids.
    padding = token_id(settings, "pad_token_id", spec.vocab_size)
    never = frozenset() if padding is None else frozenset({padding})
    return replace(spec, positions="sinusoidal", position_offset=0, never=never)


_NAMES = without_embedding_norms(BART.names)

MARIAN = EncoderDecoderFamily(
    name="marian",
    model_types=("marian",),
    spec=_spec,
    names=replace(_NAMES, ignored=(*_NAMES.ignored, r"(encoder|decoder)\.embed_positions\.weight")),
)
