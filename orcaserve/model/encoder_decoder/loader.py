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
from orcaserve.model.encoder_decoder.registry import encoder_decoder_family_of
from orcaserve.model.encoder_decoder.spec import EncoderDecoderSpec, StackSpec
from orcaserve.model.encoder_decoder.weights import Cross, EncoderDecoderWeights, Stack, StackLayer
from orcaserve.model.families.settings import Settings
from orcaserve.model.parameter import Floats, Parameter
from orcaserve.model.spec import ACTIVATIONS
from orcaserve.model.weights import MatrixT, NormT, TableT, WeightsBuilder

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

    def load(self, builder: WeightsBuilder[MatrixT, NormT, TableT]) -> EncoderDecoderWeights[MatrixT, NormT, TableT]:
        """Read all weights. Raises CheckpointError, or UnsupportedModel for kinds of numbers that are not known."""
        return _Loader(self._checkpoint, self.spec, self._names).load(builder)

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

    def __init__(self, checkpoint: Checkpoint, spec: EncoderDecoderSpec, names: EncoderDecoderNames) -> None:
        self._checkpoint, self._spec, self._names = checkpoint, spec, names
        self._stored: dict[str, str] = {}  # name without prefix -> name in the file; shrinks as tensors are taken
        for name in checkpoint.tensors:
            plain = name.removeprefix(names.prefix)
            if plain in self._stored:
                raise CheckpointError(f"tensors {self._stored[plain]} and {name} are the same parameter")
            self._stored[plain] = name

    def load(self, builder: WeightsBuilder[MatrixT, NormT, TableT]) -> EncoderDecoderWeights[MatrixT, NormT, TableT]:
        spec, names = self._spec, self._names
        embedding, head = self._ends(builder)
        bias = None
        if names.head_bias is not None and names.head_bias in self._stored:
            bias = self._take(names.head_bias, (1, spec.vocab_size)).floats().reshape(-1)
        encoder = self._stack(builder, spec.encoder, names.encoder)
        decoder = self._stack(builder, spec.decoder, names.decoder)
        left = [n for plain, n in self._stored.items() if not any(re.fullmatch(p, plain) for p in names.ignored)]
        if left:
            raise CheckpointError(f"{len(left)} tensors are no parameters of this model, the first is {left[0]}")
        return EncoderDecoderWeights(embedding, encoder, decoder, head, bias)

    def _ends(self, builder: WeightsBuilder[MatrixT, NormT, TableT]) -> tuple[TableT, MatrixT]:
        """Embedding and output head: two tables, or one that is both. Files may have it under several names, or under
        another than the first."""
        spec, names = self._spec, self._names
        size = (spec.vocab_size, spec.hidden_size)
        own_head = spec.tied is False or (spec.tied is None and f"{names.head}.weight" in self._stored)
        same = [names.embedding, *names.encoder.copies, *names.decoder.copies, *([] if own_head else [names.head])]
        found = [name for name in (f"{name}.weight" for name in same) if name in self._stored]
        table = self._take(found[0] if found else f"{names.embedding}.weight", size)
        for name in found[1:]:
            if not np.array_equal(self._take(name, size).floats(), table.floats()):
                raise UnsupportedModel(f"tensor {name} differs from {found[0]}, with which the config says it is one")
        if own_head:
            return builder.table(table), builder.matrix([self._take(f"{names.head}.weight", size)], None)
        return builder.tied(table)

    def _stack(
        self, builder: WeightsBuilder[MatrixT, NormT, TableT], sizes: StackSpec, names: StackNames
    ) -> Stack[MatrixT, NormT, TableT]:
        spec = self._spec
        positions = distances = None
        if names.positions is not None:
            n_rows = spec.position_offset + spec.source_length
            positions = builder.table(self._take(f"{names.positions}.weight", (n_rows, spec.hidden_size)))
        if names.distances is not None:
            distances = builder.table(self._take(f"{names.distances}.weight", (spec.n_buckets, sizes.n_heads)))
        return Stack(
            positions,
            distances,
            None if names.embedding_norm is None else self._norm(builder, names.embedding_norm),
            [self._layer(builder, sizes, names, names.layer.format(i=i)) for i in range(sizes.n_layers)],
            None if names.norm is None else self._norm(builder, names.norm),
        )

    def _layer(
        self, builder: WeightsBuilder[MatrixT, NormT, TableT], sizes: StackSpec, names: StackNames, start: str
    ) -> StackLayer[MatrixT, NormT]:
        spec = self._spec
        q, k, v, o = self._names.projections
        hidden, heads, wide = spec.hidden_size, sizes.heads_size, sizes.intermediate_size
        own = start + names.attention
        attention_norm = self._norm(builder, start + names.attention_norm)
        qkv = self._matrix(builder, [own + q, own + k, own + v], heads, hidden)
        out = self._matrix(builder, [own + o], hidden, heads)
        cross = None
        if names.cross is not None and names.cross_norm is not None:
            to = start + names.cross
            cross = Cross(
                self._norm(builder, start + names.cross_norm),
                self._matrix(builder, [to + q], heads, hidden),
                self._matrix(builder, [to + k, to + v], heads, hidden),
                self._matrix(builder, [to + o], hidden, heads),
            )
        mlp_norm = self._norm(builder, start + names.mlp_norm)
        ups = [start + name for name in (names.gated_up if spec.gated else (names.up,))]
        up = self._matrix(builder, ups, wide, hidden, gated=spec.gated)
        return StackLayer(
            attention_norm, qkv, out, cross, mlp_norm, up, self._matrix(builder, [start + names.down], hidden, wide)
        )

    def _matrix(
        self,
        builder: WeightsBuilder[MatrixT, NormT, TableT],
        names: Sequence[str],
        size: int,
        width: int,
        gated: bool = False,
    ) -> MatrixT:
        """Parts [size, width] on top of each other."""
        parts = [self._take(f"{name}.weight", (size, width)) for name in names]
        biases: list[Floats] | None = None
        if self._spec.bias:
            biases = [self._take(f"{name}.bias", (size,)).floats() for name in names]
        return builder.matrix(parts, biases, gated)

    def _norm(self, builder: WeightsBuilder[MatrixT, NormT, TableT], name: str) -> NormT:
        size = (self._spec.hidden_size,)
        bias = self._take(f"{name}.bias", size).floats() if self._spec.norm == "layer" else None
        return builder.norm(self._take(f"{name}.weight", size).floats(), bias)

    def _take(self, name: str, shape: tuple[int, ...]) -> Parameter:
        """A parameter that has not been taken yet. Raises CheckpointError."""
        stored = self._stored.pop(name, None)
        if stored is None:
            raise CheckpointError(f"tensor {name} of sizes {list(shape)} is missing")
        actual = self._checkpoint.tensors[stored].shape
        if actual != shape:
            raise CheckpointError(f"tensor {stored} has sizes {list(actual)}, the config asks for {list(shape)}")
        return Parameter(self._checkpoint, stored)
