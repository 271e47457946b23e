"""EncoderDecoderFiles: a checkpoint's tensors into the skeleton with two stacks. It fails rather than guesses.

Every parameter is used exactly once, from a tensor of exactly the expected sizes, and every tensor of the checkpoint is
used, or a copy of one, or known to be no parameter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np

from orcaserve.checkpoint.checkpoint import Checkpoint, eos_ids, open_checkpoint
from orcaserve.core.errors import CheckpointError, UnsupportedModel
from orcaserve.model.encoder_decoder.family import EncoderDecoderNames, StackNames
from orcaserve.model.encoder_decoder.part import EncoderDecoderPart
from orcaserve.model.encoder_decoder.registry import encoder_decoder_family_of
from orcaserve.model.encoder_decoder.spec import EncoderDecoderSpec, StackSpec
from orcaserve.model.encoder_decoder.weights import Cross, EncoderDecoderWeights, Stack, StackLayer
from orcaserve.model.families.settings import Settings
from orcaserve.model.parameter import Cut, Floats, Parameter
from orcaserve.model.spec import ACTIVATIONS
from orcaserve.model.weights import MatrixT, NormT, Nothing, TableT, WeightsBuilder

_OF_GENERATION = ("decoder_start_token_id", "forced_bos_token_id", "pad_token_id")


class EncoderDecoderFiles:
    """An open checkpoint whose config makes sense. Close it, or use `with`.

    Raises ModelNotFound, CheckpointError (damaged or contradictory) or UnsupportedModel.
    """

    def __init__(self, path: Path) -> None:
        self._checkpoint = open_checkpoint(path)
        try:
            self.spec, self._names = _describe(self._checkpoint)
        except BaseException:
            self._checkpoint.close()
            raise

    def load(
        self, builder: WeightsBuilder[MatrixT, NormT, TableT], part: EncoderDecoderPart | None = None
    ) -> EncoderDecoderWeights[MatrixT, NormT, TableT]:
        """Read the weights of a part alone, or all. The others must be there and of the right sizes all the same.

        Raises CheckpointError, or UnsupportedModel for kinds of numbers that are not known.
        """
        return _Loader(self._checkpoint, part or EncoderDecoderPart.whole(self.spec), self._names).load(builder)

    def close(self) -> None:
        self._checkpoint.close()

    def __enter__(self) -> EncoderDecoderFiles:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def _describe(checkpoint: Checkpoint) -> tuple[EncoderDecoderSpec, EncoderDecoderNames]:
    """The model's sizes and the names of its tensors, checked as far as they can be without reading weights."""
    generation = {key: value for key in _OF_GENERATION if (value := checkpoint.generation_config.get(key)) is not None}
    settings = Settings({**checkpoint.config, **generation})
    settings.refuse("quantization_config")
    family = encoder_decoder_family_of(checkpoint.config.get("model_type"))
    spec = family.spec(settings)
    if spec.activation not in ACTIVATIONS:
        raise UnsupportedModel(f"activation {spec.activation!r} is not supported; {', '.join(ACTIVATIONS)} are")
    if spec.positions == "relative" and (spec.n_buckets % 4 or spec.max_distance <= spec.n_buckets // 2):
        raise settings.error(
            "relative_attention_num_buckets must be a multiple of 4, and relative_attention_max_distance more than half"
        )
    ids = frozenset(token for token in eos_ids(checkpoint) if token < spec.vocab_size)
    return replace(spec, eos_ids=ids), family.names


class _Loader:
    """Takes tensors out of a checkpoint, each once."""

    def __init__(self, checkpoint: Checkpoint, part: EncoderDecoderPart, names: EncoderDecoderNames) -> None:
        self._checkpoint, self._part, self._spec, self._names = checkpoint, part, part.spec, names
        self._reads = True  # the numbers of norms and biases
        self._stored: dict[str, str] = {}  # name without prefix -> name in the file; shrinks as tensors are taken
        for name in checkpoint.tensors:
            plain = name.removeprefix(names.prefix)
            if plain in self._stored:
                raise CheckpointError(f"tensors {self._stored[plain]} and {name} are the same parameter")
            self._stored[plain] = name

    def load(self, builder: WeightsBuilder[MatrixT, NormT, TableT]) -> EncoderDecoderWeights[MatrixT, NormT, TableT]:
        spec, names, part = self._spec, self._names, self._part
        embedding, head = self._ends(builder)
        bias = self._head_bias()
        encoder = self._stack(builder, spec.encoder, names.encoder, part.encoder_layers, part.ends_encoder)
        decoder = self._stack(builder, spec.decoder, names.decoder, part.decoder_layers, part.last)
        left = [n for plain, n in self._stored.items() if not any(re.fullmatch(p, plain) for p in names.ignored)]
        if left:
            raise CheckpointError(f"{len(left)} tensors are no parameters of this model, the first is {left[0]}")
        return EncoderDecoderWeights(embedding, encoder, decoder, head, bias)

    def _ends(self, builder: WeightsBuilder[MatrixT, NormT, TableT]) -> tuple[TableT | None, MatrixT | None]:
        """Embedding and output head: two tables, or one that is both. Files may have it under several names, or under
        another than the first."""
        spec, names, part = self._spec, self._names, self._part
        size = (spec.vocab_size, spec.hidden_size)
        own_head = spec.tied is False or (spec.tied is None and f"{names.head}.weight" in self._stored)
        same = [names.embedding, *names.encoder.copies, *names.decoder.copies, *([] if own_head else [names.head])]
        found = [name for name in (f"{name}.weight" for name in same) if name in self._stored]
        table = self._take(found[0] if found else f"{names.embedding}.weight", size)
        for name in found[1:]:
            copy = self._take(name, size)
            if (part.first or part.last) and not np.array_equal(copy.floats(), table.floats()):
                raise UnsupportedModel(f"tensor {name} differs from {found[0]}, with which the config says it is one")
        if part.is_whole and not own_head:
            return builder.tied(table)
        head = self._take(f"{names.head}.weight", size) if own_head else table
        if part.n_shards > 1:
            head = head.cut(Cut((part.vocabulary,)))
        return builder.table(table) if part.first else None, builder.matrix([head], None) if part.last else None

    def _head_bias(self) -> Floats | None:
        name, part = self._names.head_bias, self._part
        if name is None or name not in self._stored:
            return None
        bias = self._take(name, (1, self._spec.vocab_size))
        if part.n_shards > 1:
            bias = bias.cut(Cut((range(1),), part.vocabulary))
        return bias.floats().reshape(-1) if part.last else None

    def _stack(
        self,
        builder: WeightsBuilder[MatrixT, NormT, TableT],
        sizes: StackSpec,
        names: StackNames,
        own: range,
        ends: bool,
    ) -> Stack[MatrixT, NormT, TableT]:
        """own: the layers that are wanted; ends: whether what follows the last one is."""
        spec, part = self._spec, self._part
        positions = distances = None
        if names.positions is not None:
            n_rows = spec.position_offset + spec.source_length
            table = self._take(f"{names.positions}.weight", (n_rows, spec.hidden_size))
            positions = builder.table(table) if part.first else None
        if names.distances is not None:
            table = self._take(f"{names.distances}.weight", (spec.n_buckets, sizes.n_heads))
            if part.n_shards > 1:
                table = table.cut(Cut((range(spec.n_buckets),), part.heads(sizes)))
            distances = builder.table(table) if own else None
        embedding_norm = self._norm_if(part.first, builder, names.embedding_norm)
        layers = []
        for i in range(sizes.n_layers):
            self._reads, start = i in own, names.layer.format(i=i)
            if self._reads:
                layers.append(self._layer(builder, sizes, names, start))
            else:
                self._layer(Nothing(), sizes, names, start)
        return Stack(positions, distances, embedding_norm, layers, self._norm_if(ends, builder, names.norm))

    def _layer(
        self, builder: WeightsBuilder[MatrixT, NormT, TableT], sizes: StackSpec, names: StackNames, start: str
    ) -> StackLayer[MatrixT, NormT]:
        spec, part = self._spec, self._part
        q, k, v, o = self._names.projections
        hidden, everything = spec.hidden_size, range(spec.hidden_size)
        columns = part.columns(sizes)
        heads = range(part.heads(sizes).start * sizes.head_dim, part.heads(sizes).stop * sizes.head_dim)

        def matrix(
            parts: Sequence[str],
            size: int,
            own: range,
            width: int,
            inputs: range | None = None,
            gated: bool = False,
        ) -> MatrixT:
            """Parts [size, width] on top of each other. own: this shard's outputs of each; inputs: its inputs, None =
            all of them."""
            cut = part.n_shards > 1
            rows = [self._take(f"{name}.weight", (size, width), Cut((own,), inputs) if cut else None) for name in parts]
            if not spec.bias:
                return builder.matrix(rows, None, gated)
            bias = [self._take(f"{name}.bias", (size,), Cut((own,)) if cut else None) for name in parts]
            numbers = [self._numbers(each) for each in bias]
            added = inputs is None or part.shard == 0  # once, where sums over shards are added up
            return builder.matrix(rows, numbers if added else None, gated)

        attention = start + names.attention
        attention_norm = self._norm(builder, start + names.attention_norm)
        qkv = matrix([attention + q, attention + k, attention + v], sizes.heads_size, heads, hidden)
        out = matrix([attention + o], hidden, everything, sizes.heads_size, heads)
        cross = None
        if names.cross is not None and names.cross_norm is not None:
            to = start + names.cross
            cross = Cross(
                self._norm(builder, start + names.cross_norm),
                matrix([to + q], sizes.heads_size, heads, hidden),
                matrix([to + k, to + v], sizes.heads_size, heads, hidden),
                matrix([to + o], hidden, everything, sizes.heads_size, heads),
            )
        mlp_norm = self._norm(builder, start + names.mlp_norm)
        ups = [start + name for name in (names.gated_up if spec.gated else (names.up,))]
        up = matrix(ups, sizes.intermediate_size, columns, hidden, gated=spec.gated)
        down = matrix([start + names.down], hidden, everything, sizes.intermediate_size, columns)
        return StackLayer(attention_norm, qkv, out, cross, mlp_norm, up, down)

    def _norm_if(self, wanted: bool, builder: WeightsBuilder[MatrixT, NormT, TableT], name: str | None) -> NormT | None:
        """None if others have it, or nobody has."""
        if name is None:
            return None
        self._reads = wanted
        return self._norm(builder, name) if wanted else self._norm(Nothing(), name)

    def _norm(self, builder: WeightsBuilder[MatrixT, NormT, TableT], name: str) -> NormT:
        size = (self._spec.hidden_size,)
        bias = self._numbers(self._take(f"{name}.bias", size)) if self._spec.norm == "layer" else None
        return builder.norm(self._numbers(self._take(f"{name}.weight", size)), bias)

    def _numbers(self, parameter: Parameter) -> Floats:
        """Of a norm or a bias; none of what other workers have."""
        return parameter.floats() if self._reads else np.empty(0, np.float32)

    def _take(self, name: str, shape: tuple[int, ...], cut: Cut | None = None) -> Parameter:
        """A parameter that has not been taken yet. shape: as stored. Raises CheckpointError."""
        stored = self._stored.pop(name, None)
        if stored is None:
            raise CheckpointError(f"tensor {name} of sizes {list(shape)} is missing")
        actual = self._checkpoint.tensors[stored].shape
        if actual != shape:
            raise CheckpointError(f"tensor {stored} has sizes {list(actual)}, the config asks for {list(shape)}")
        return Parameter(self._checkpoint, stored, cut=cut)
