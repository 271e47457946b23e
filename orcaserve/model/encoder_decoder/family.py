"""EncoderDecoderFamily: how one kind of model differs from the skeleton with two stacks, as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orcaserve.model.encoder_decoder.spec import EncoderDecoderSpec
from orcaserve.model.families.settings import Settings


@dataclass(frozen=True, slots=True)
class StackNames:
    """What the tensors of one stack are called, without the endings .weight and .bias.

    layer: start of the names of layer {i}. attention, cross: starts of the names of the projections; up: the MLP's
    first matrix, gated_up: the gate and what it multiplies. These and the norms follow the layer's start.
    norm: after all layers; embedding_norm: before them. positions: rows that are looked up. distances: the numbers
    [buckets, heads] of relative positions, which all layers use. None: there is no such thing.
    copies: other names of the embedding, which files may have too.
    """

    layer: str
    attention: str
    attention_norm: str
    up: str
    gated_up: tuple[str, str]
    down: str
    mlp_norm: str
    norm: str | None
    embedding_norm: str | None
    positions: str | None
    distances: str | None
    copies: tuple[str, ...]
    cross: str | None = None
    cross_norm: str | None = None


@dataclass(frozen=True, slots=True)
class EncoderDecoderNames:
    """projections: of query, key, value and output. head_bias: [1, vocabulary], added to the logits; zeros if missing.
    prefix: start that files may put before names. ignored: patterns (re.fullmatch) of what is no parameter.
    """

    embedding: str
    projections: tuple[str, str, str, str]
    encoder: StackNames
    decoder: StackNames
    head: str
    head_bias: str | None = None
    prefix: str = ""
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EncoderDecoderFamily:
    """model_types: values of config.json's model_type that it reads. spec: from the settings, to which those of
    generation_config.json were added."""

    name: str
    model_types: tuple[str, ...]
    spec: Callable[[Settings], EncoderDecoderSpec]
    names: EncoderDecoderNames


def token_id(settings: Settings, key: str, vocab_size: int) -> int | None:
    """A token, or None if there is none. Raises CheckpointError."""
    value = settings.get(key)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < vocab_size:
        raise settings.error(f"{key} must be a token id from 0 to {vocab_size - 1}")
    return value


def start_id(settings: Settings, vocab_size: int) -> int:
    """The token that the decoder begins with. Raises CheckpointError if nothing says which it is."""
    token = token_id(settings, "decoder_start_token_id", vocab_size)
    if token is None:
        raise settings.error("decoder_start_token_id is missing, in config.json and in generation_config.json")
    return token
