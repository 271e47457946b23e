"""BART: learned positions, LayerNorm behind the sums and behind the embedding, biases everywhere."""

from __future__ import annotations

import math
from dataclasses import replace

from orcaserve.model.encoder_decoder.family import (
    EncoderDecoderFamily,
    EncoderDecoderNames,
    StackNames,
    start_id,
    token_id,
)
from orcaserve.model.encoder_decoder.spec import EncoderDecoderSpec, StackSpec
from orcaserve.model.families.settings import Settings

OFFSET = 2  # of the rows of its table of positions


def bart_spec(settings: Settings) -> EncoderDecoderSpec:
    """Of all models whose config.json has BART's keys."""
    vocab_size, hidden = settings.size("vocab_size"), settings.size("d_model")
    length = settings.size("max_position_embeddings", 1024)
    return EncoderDecoderSpec(
        vocab_size=vocab_size,
        source_length=length,
        output_length=length,
        hidden_size=hidden,
        encoder=_stack_spec(settings, "encoder", hidden),
        decoder=_stack_spec(settings, "decoder", hidden),
        norm="layer",
        norm_eps=1e-5,
        pre_norm=False,
        bias=True,
        activation=settings.text("activation_function", "gelu"),
        gated=False,
        positions="learned",
        tied=settings.flag("tie_word_embeddings", True),
        start=start_id(settings, vocab_size),
        position_offset=OFFSET,
        embedding_scale=math.sqrt(hidden) if settings.flag("scale_embedding", False) else 1.0,
        first=token_id(settings, "forced_bos_token_id", vocab_size),
    )


def _stack_spec(settings: Settings, side: str, hidden: int) -> StackSpec:
    n_heads = settings.size(f"{side}_attention_heads", 16)
    if hidden % n_heads:
        raise settings.error(f"d_model {hidden} is not a multiple of {side}_attention_heads {n_heads}")
    layers = settings.size(f"{side}_layers", 12)
    return StackSpec(layers, n_heads, hidden // n_heads, settings.size(f"{side}_ffn_dim", 4096))


def _stack(side: str) -> StackNames:
    cross = side == "decoder"
    return StackNames(
        layer=f"{side}.layers.{{i}}.",
        attention="self_attn.",
        attention_norm="self_attn_layer_norm",
        up="fc1",
        gated_up=("", ""),
        down="fc2",
        mlp_norm="final_layer_norm",
        norm=None,
        embedding_norm=f"{side}.layernorm_embedding",
        positions=f"{side}.embed_positions",
        distances=None,
        copies=(f"{side}.embed_tokens",),
        cross="encoder_attn." if cross else None,
        cross_norm="encoder_attn_layer_norm" if cross else None,
    )


BART = EncoderDecoderFamily(
    name="bart",
    model_types=("bart",),
    spec=bart_spec,
    names=EncoderDecoderNames(
        embedding="shared",
        projections=("q_proj", "k_proj", "v_proj", "out_proj"),
        encoder=_stack("encoder"),
        decoder=_stack("decoder"),
        head="lm_head",
        head_bias="final_logits_bias",
        prefix="model.",
        ignored=(r"(encoder|decoder)\.version",),
    ),
)


def without_embedding_norms(names: EncoderDecoderNames) -> EncoderDecoderNames:
    """The same, for kin that has no norm behind the embedding, and whose positions are worked out."""
    encoder, decoder = (replace(side, embedding_norm=None, positions=None) for side in (names.encoder, names.decoder))
    return replace(names, encoder=encoder, decoder=decoder)
