"""T5 and its kin (v1.1, Flan-T5, mT5): relative positions, RMSNorm before, no biases, scores that are not scaled."""

from __future__ import annotations

from orcaserve.core.errors import UnsupportedModel
from orcaserve.model.encoder_decoder.family import EncoderDecoderFamily, EncoderDecoderNames, StackNames, start_id
from orcaserve.model.encoder_decoder.spec import EncoderDecoderSpec, StackSpec
from orcaserve.model.families.settings import Settings


def _spec(settings: Settings) -> EncoderDecoderSpec:
    vocab_size, hidden = settings.size("vocab_size"), settings.size("d_model")
    gated, activation = _mlp(settings)
    n_layers, n_heads, head_dim = settings.size("num_layers"), settings.size("num_heads"), settings.size("d_kv")
    wide = settings.size("d_ff")
    length = settings.size("n_positions", 512)  # of the texts it was trained on: the positions have no end
    tied, scaled = _head(settings)
    return EncoderDecoderSpec(
        vocab_size=vocab_size,
        source_length=length,
        output_length=length,
        hidden_size=hidden,
        encoder=StackSpec(n_layers, n_heads, head_dim, wide),
        decoder=StackSpec(settings.size("num_decoder_layers", n_layers), n_heads, head_dim, wide),
        norm="rms",
        norm_eps=settings.number("layer_norm_epsilon", 1e-6),
        pre_norm=True,
        bias=False,
        activation=activation,
        gated=gated,
        positions="relative",
        tied=tied,
        start=start_id(settings, vocab_size),
        n_buckets=settings.size("relative_attention_num_buckets", 32),
        max_distance=settings.size("relative_attention_max_distance", 128),
        attention_scale=1.0,
        output_scale=hidden**-0.5 if scaled else 1.0,
    )


def _head(settings: Settings) -> tuple[bool | None, bool]:
    """Whether the head is the embedding (None: if there is no head), and whether what goes into it is scaled.

    Original T5 scales it, v1.1 and later do not, which only `tie_word_embeddings` tells. Newer files say it by a key of
    its own, always call themselves tied, and have a head if they are not. mT5 never scales.
    """
    if settings.get("model_type") == "mt5":
        return None, False
    tied = settings.flag("tie_word_embeddings", True)
    if settings.get("scale_decoder_outputs") is None:
        return tied, tied
    return None, settings.flag("scale_decoder_outputs", True)


def _mlp(settings: Settings) -> tuple[bool, str]:
    """Whether it has a gate, and the name of its activation."""
    text = settings.text("feed_forward_proj", "gated-gelu" if settings.get("model_type") == "mt5" else "relu")
    *before, activation = text.split("-")
    if before not in ([], ["gated"]):
        raise UnsupportedModel(f"feed_forward_proj {text!r} is not supported; an activation's name and gated-NAME are")
    return bool(before), "gelu_new" if text == "gated-gelu" else activation


def _stack(side: str, mlp: int) -> StackNames:
    """mlp: which part of a layer it is."""
    dense = f"layer.{mlp}.DenseReluDense."
    return StackNames(
        layer=f"{side}.block.{{i}}.",
        attention="layer.0.SelfAttention.",
        attention_norm="layer.0.layer_norm",
        up=f"{dense}wi",
        gated_up=(f"{dense}wi_0", f"{dense}wi_1"),
        down=f"{dense}wo",
        mlp_norm=f"layer.{mlp}.layer_norm",
        norm=f"{side}.final_layer_norm",
        embedding_norm=None,
        positions=None,
        distances=f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias",
        copies=(f"{side}.embed_tokens",),
        cross="layer.1.EncDecAttention." if mlp == 2 else None,
        cross_norm="layer.1.layer_norm" if mlp == 2 else None,
    )


T5 = EncoderDecoderFamily(
    name="t5",
    model_types=("t5", "mt5"),
    spec=_spec,
    names=EncoderDecoderNames(
        embedding="shared",
        projections=("q", "k", "v", "o"),
        encoder=_stack("encoder", 1),
        decoder=_stack("decoder", 2),
        head="lm_head",
        ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    ),
)
