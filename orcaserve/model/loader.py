"""ModelFiles: a checkpoint's tensors into the skeleton's weights. It fails rather than guesses.

Every parameter is used exactly once, from a tensor of exactly the expected sizes, and every tensor of the checkpoint is
used or known to be no parameter.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np

from orcaserve.checkpoint.checkpoint import Checkpoint, eos_ids, open_checkpoint
from orcaserve.core.errors import CheckpointError, UnsupportedModel
from orcaserve.model.families import Names, family_of
from orcaserve.model.families.settings import Settings
from orcaserve.model.parameter import Parameter
from orcaserve.model.spec import ACTIVATIONS, ModelSpec
from orcaserve.model.weights import Layer, MatrixT, NormT, TableT, Weights, WeightsBuilder

logger = logging.getLogger(__name__)


class ModelFiles:
    """An open checkpoint whose config makes sense. Close it, or use `with`.

    spec: the model's sizes. matrix_kinds: how the files store its matrices, names such as F32 or Q4_1.
    Raises ModelNotFound, CheckpointError (damaged or contradictory) or UnsupportedModel.
    """

    def __init__(self, path: Path) -> None:
        self._checkpoint = open_checkpoint(path)
        try:
            self.spec, self._names = _describe(self._checkpoint)
        except BaseException:
            self._checkpoint.close()
            raise
        tensors = self._checkpoint.tensors.values()
        self.matrix_kinds = frozenset(info.kind for info in tensors if len(info.shape) == 2)

    def load(self, builder: WeightsBuilder[MatrixT, NormT, TableT]) -> Weights[MatrixT, NormT, TableT]:
        """Read all weights. Raises CheckpointError, or UnsupportedModel for kinds of numbers that are not known."""
        return _Loader(self._checkpoint, self.spec, self._names).load(builder)

    def close(self) -> None:
        self._checkpoint.close()

    def __enter__(self) -> ModelFiles:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def _describe(checkpoint: Checkpoint) -> tuple[ModelSpec, Names]:
    """The model's sizes and the names of its tensors, checked as far as they can be without reading weights."""
    settings = Settings(checkpoint.config)
    settings.refuse("quantization_config")
    family = family_of(checkpoint.config.get("model_type"))
    spec = family.spec(settings)
    if spec.activation not in ACTIVATIONS:
        raise UnsupportedModel(f"activation {spec.activation!r} is not supported; {', '.join(ACTIVATIONS)} are")
    if spec.n_heads % spec.n_kv_heads:
        raise CheckpointError(f"{spec.n_heads} heads cannot share {spec.n_kv_heads} key/value heads evenly")
    names = family.gguf if checkpoint.format == "gguf" else family.safetensors
    if checkpoint.config["model_type"] not in names.interleaved:
        names = replace(names, interleaved=frozenset())
    ids = frozenset(token for token in eos_ids(checkpoint) if token < spec.vocab_size)
    return replace(spec, eos_ids=ids), names


class _Loader:
    """Takes tensors out of a checkpoint, each once."""

    def __init__(self, checkpoint: Checkpoint, spec: ModelSpec, names: Names) -> None:
        self._checkpoint, self._spec, self._names = checkpoint, spec, names
        self._stored: dict[str, str] = {}  # name without prefix -> name in the file; shrinks as tensors are taken
        for name in checkpoint.tensors:
            plain = name.removeprefix(names.prefix)
            if plain in self._stored:
                raise CheckpointError(f"tensors {self._stored[plain]} and {name} are the same parameter")
            self._stored[plain] = name

    def load(self, builder: WeightsBuilder[MatrixT, NormT, TableT]) -> Weights[MatrixT, NormT, TableT]:
        spec, names = self._spec, self._names
        embedding, head = self._ends(builder)
        weights = Weights(
            embedding=embedding,
            positions=builder.table(self._table(names.positions, spec.context_length)) if names.positions else None,
            layers=[self._layer(builder, names.layer.format(i=i)) for i in range(spec.n_layers)],
            norm=self._norm(builder, names.norm),
            head=head,
        )
        left = [name for plain, name in self._stored.items() if not self._is_ignored(plain)]
        if left:
            raise CheckpointError(f"{len(left)} tensors are no parameters of this model, the first is {left[0]}")
        return weights

    def _is_ignored(self, plain: str) -> bool:
        return any(re.fullmatch(pattern, plain) for pattern in self._names.ignored)

    def _layer(self, builder: WeightsBuilder[MatrixT, NormT, TableT], start: str) -> Layer[MatrixT, NormT]:
        spec, names = self._spec, self._names

        def matrix(parts: Sequence[str], sizes: Sequence[int], width: int, bias: bool, turned: Sequence[int] = (),
                   gated: bool = False) -> MatrixT:  # fmt: skip
            taken = self._parts([f"{start}{part}.weight" for part in parts], sizes, width, turned)
            biases = self._parts([f"{start}{part}.bias" for part in parts], sizes, None, turned) if bias else []
            return builder.matrix(taken, [part.floats() for part in biases] if bias else None, gated)

        attention_norm = self._norm(builder, start + names.attention_norm)
        heads = (spec.n_heads, spec.n_kv_heads)
        qkv = matrix(
            names.qkv, (spec.q_size, spec.kv_size, spec.kv_size), spec.hidden_size, spec.qkv_bias, turned=heads
        )
        out = matrix((names.out,), (spec.hidden_size,), spec.q_size, spec.out_bias)
        mlp_norm = self._norm(builder, start + names.mlp_norm)
        wide = (spec.intermediate_size,) * (2 if spec.gated else 1)
        up = matrix(names.up, wide, spec.hidden_size, spec.mlp_bias, gated=spec.gated)
        down = matrix((names.down,), (spec.hidden_size,), spec.intermediate_size, spec.mlp_bias)
        return Layer(attention_norm, qkv, out, mlp_norm, up, down)

    def _norm(self, builder: WeightsBuilder[MatrixT, NormT, TableT], name: str) -> NormT:
        size = (self._spec.hidden_size,)
        weight = self._take(name + ".weight", size).floats()
        return builder.norm(weight, self._take(name + ".bias", size).floats() if self._spec.norm == "layer" else None)

    def _table(self, name: str, rows: int) -> Parameter:
        """[rows, hidden], looked up by row; stored so in every family."""
        return self._take(name + ".weight", (rows, self._spec.hidden_size))

    def _ends(self, builder: WeightsBuilder[MatrixT, NormT, TableT]) -> tuple[TableT, MatrixT]:
        """Embedding and output head: two tables, or one that is both."""
        spec, names = self._spec, self._names
        table = self._table(names.embedding, spec.vocab_size)
        if not spec.tied:
            return builder.table(table), builder.matrix([self._table(names.head, spec.vocab_size)], None)
        if f"{names.head}.weight" in self._stored:
            head = self._table(names.head, spec.vocab_size)
            if not np.array_equal(head.floats(), table.floats()):
                logger.warning("%s.weight differs from the embedding it is tied to, and is ignored", names.head)
        return builder.tied(table)

    def _parts(
        self, names: Sequence[str], sizes: Sequence[int], width: int | None, turned: Sequence[int]
    ) -> list[Parameter]:
        """The parts of a stacked matrix (bias: width None), or one tensor that is all of them.

        turned: numbers of heads of the leading parts that rotary positions turn.
        """
        transposed = self._names.transposed and width is not None
        if len(names) == 1:
            sizes = (sum(sizes),)
        interleaved = [*turned, *(0 for _ in sizes)] if self._names.interleaved else [0] * len(sizes)
        parts = []
        for name, size, n_turned in zip(names, sizes, interleaved, strict=False):
            shape = (size,) if width is None else (width, size) if transposed else (size, width)
            parts.append(self._take(name, shape, transposed, n_turned))
        return parts

    def _take(self, name: str, shape: tuple[int, ...], transposed: bool = False, n_turned: int = 0) -> Parameter:
        """A parameter that has not been taken yet. shape: as stored. Raises CheckpointError."""
        stored = self._stored.pop(name, None)
        if stored is None:
            raise CheckpointError(f"tensor {name} of sizes {list(shape)} is missing")
        actual = self._checkpoint.tensors[stored].shape
        if actual != shape:
            raise CheckpointError(f"tensor {stored} has sizes {list(actual)}, the config asks for {list(shape)}")
        return Parameter(self._checkpoint, stored, transposed, n_turned)
