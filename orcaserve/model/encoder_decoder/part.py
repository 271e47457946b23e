"""EncoderDecoderPart: what one worker has of a model with two stacks.

    layers      0 ... the encoder's ... E - 1 | E ... the decoder's ... E + D - 1
    stages      [      stage 0                       ][     stage 1           ]

All layers stand in one row, and a stage has a run of them. What travels from stage to stage is a row for each token of
the iteration: of one that the encoder reads, what the encoder has made of it so far, and behind the encoder's last
layer what it made of it in the end, of which every later stage makes the keys and values of its own layers; of any
other one, what the decoder has made of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from orcaserve.core.errors import ConfigError
from orcaserve.model.encoder_decoder.spec import EncoderDecoderSpec, StackSpec
from orcaserve.model.part import check_layers_and_shard, share

COLUMN_UNIT = 8  # of the MLPs: what a GPU multiplies at once is not cut through


@dataclass(frozen=True, slots=True)
class EncoderDecoderPart:
    """Layers `layers` of both stacks of the model `spec`, shard `shard` of `n_shards`.

    A shard has some heads of every attention, some columns of the MLPs and some of the vocabulary, as even as they come
    out. Its Linears `out` and `down` give sums over its own inputs alone, as those of a `Part` do.
    Raises ConfigError if the model cannot be cut so.
    """

    spec: EncoderDecoderSpec
    layers: range
    shard: int = 0
    n_shards: int = 1

    def __post_init__(self) -> None:
        check_layers_and_shard(self.layers, self.spec.n_stacked, self.shard, self.n_shards)
        stacks = (self.spec.encoder, self.spec.decoder)
        most = min(min(stack.n_heads, -(-stack.intermediate_size // COLUMN_UNIT)) for stack in stacks)
        if self.n_shards > most:
            sizes = " and ".join(f"{each.n_heads} heads with {each.intermediate_size} columns" for each in stacks)
            raise ConfigError(
                "--tensor-parallel-size", f"must be at most {most}: the model's encoder and decoder have {sizes}"
            )

    @classmethod
    def whole(cls, spec: EncoderDecoderSpec) -> EncoderDecoderPart:
        return cls(spec, range(spec.n_stacked))

    @property
    def first(self) -> bool:
        """Whether it has the embedding."""
        return self.layers.start == 0

    @property
    def last(self) -> bool:
        """Whether it has the head."""
        return self.layers.stop == self.spec.n_stacked

    @property
    def is_whole(self) -> bool:
        return self.first and self.last and self.n_shards == 1

    @property
    def encoder_layers(self) -> range:
        """Counted in the encoder."""
        n = self.spec.encoder.n_layers
        return range(min(self.layers.start, n), min(self.layers.stop, n))

    @property
    def decoder_layers(self) -> range:
        """Counted in the decoder. Of these alone it has keys and values."""
        n = self.spec.encoder.n_layers
        return range(max(self.layers.start, n) - n, max(self.layers.stop, n) - n)

    @property
    def ends_encoder(self) -> bool:
        """Whether it has the encoder's last layer."""
        return self.spec.encoder.n_layers - 1 in self.layers

    def heads(self, stack: StackSpec) -> range:
        return share(stack.n_heads, self.shard, self.n_shards)

    def columns(self, stack: StackSpec) -> range:
        """Of the MLP."""
        return share(stack.intermediate_size, self.shard, self.n_shards, COLUMN_UNIT)

    @property
    def vocabulary(self) -> range:
        """Of the head. The embedding is whole in every shard of the first stage."""
        return share(self.spec.vocab_size, self.shard, self.n_shards)

    @property
    def own_spec(self) -> EncoderDecoderSpec:
        """The sizes of this part alone; the vocabulary's is the whole model's. A stack may have no layers."""
        encoder, decoder = (
            replace(
                stack, n_layers=len(own), n_heads=len(self.heads(stack)), intermediate_size=len(self.columns(stack))
            )
            for stack, own in ((self.spec.encoder, self.encoder_layers), (self.spec.decoder, self.decoder_layers))
        )
        return replace(self.spec, encoder=encoder, decoder=decoder)
