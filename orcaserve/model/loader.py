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
from orcaserve.model.filled_heads import fill_heads
from orcaserve.model.parameter import Cut, Floats, Parameter
from orcaserve.model.part import Part
from orcaserve.model.spec import ACTIVATIONS, ModelSpec
from orcaserve.model.weights import Expert, Layer, MatrixT, NormT, Nothing, PartWeights, TableT, Weights, WeightsBuilder

logger = logging.getLogger(__name__)


class ModelFiles:
    """An open checkpoint whose config makes sense. Close it, or use `with`.

    head_unit: heads are filled up to a multiple of so many dimensions; for the CPU's kernels HEAD_UNIT.
    spec: the model's sizes. matrix_kinds: how the files store its matrices, names such as F32 or Q4_1.
    Raises ModelNotFound, CheckpointError (damaged or contradictory) or UnsupportedModel.
    """

    def __init__(self, path: Path, head_unit: int = 1) -> None:
        self._checkpoint = open_checkpoint(path)
        try:
            spec, self._names = _describe(self._checkpoint)
            self._checkpoint, self.spec = fill_heads(self._checkpoint, spec, self._names, head_unit)
        except BaseException:
            self._checkpoint.close()
            raise
        tensors = self._checkpoint.tensors.values()
        self.matrix_kinds = frozenset(info.kind for info in tensors if len(info.shape) == 2)

    def load(self, builder: WeightsBuilder[MatrixT, NormT, TableT]) -> Weights[MatrixT, NormT, TableT]:
        """Read all weights. Raises CheckpointError, or UnsupportedModel for kinds of numbers that are not known."""
        loaded = self.load_part(builder, Part.whole(self.spec))
        assert loaded.embedding is not None and loaded.norm is not None and loaded.head is not None
        return Weights(
            loaded.embedding, loaded.positions, loaded.layers, loaded.norm, loaded.head, loaded.embedding_norm
        )

    def load_part(
        self, builder: WeightsBuilder[MatrixT, NormT, TableT], part: Part
    ) -> PartWeights[MatrixT, NormT, TableT]:
        """Read the weights of a part alone. The others must be there and of the right sizes all the same.

        Raises as `load`, and UnsupportedModel if a block of a quantised matrix would be cut through.
        """
        return _Loader(self._checkpoint, part, self._names).load(builder)

    def close(self) -> None:
        self._checkpoint.close()

    def __enter__(self) -> ModelFiles:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def _describe(checkpoint: Checkpoint) -> tuple[ModelSpec, Names]:
    """The model's sizes and the names of its tensors, checked as far as they can be without reading weights."""
    settings = Settings(checkpoint.config)
    family = family_of(checkpoint.config.get("model_type"), checkpoint.format)
    spec = family.spec(settings)
    if spec.activation not in ACTIVATIONS:
        raise UnsupportedModel(f"activation {spec.activation!r} is not supported; {', '.join(ACTIVATIONS)} are")
    if spec.n_heads % spec.n_kv_heads:
        raise CheckpointError(f"{spec.n_heads} heads cannot share {spec.n_kv_heads} key/value heads evenly")
    names = family.gguf if checkpoint.format == "gguf" else family.safetensors
    assert names is not None  # a family without GGUF names has no architectures
    names = family.variant(names, checkpoint.tensors)
    if spec.local_rope is None and all(window >= spec.context_length for window in spec.windows if window):
        spec = replace(spec, windows=())  # no text is so long
    ids = frozenset(token for token in eos_ids(checkpoint) if token < spec.vocab_size)
    return replace(spec, eos_ids=ids), names


class _Loader:
    """Takes tensors out of a checkpoint, each once."""

    def __init__(self, checkpoint: Checkpoint, part: Part, names: Names) -> None:
        self._checkpoint, self._part, self._spec, self._names = checkpoint, part, part.spec, names
        self._reads = True
        self._taken: set[str] = set()
        self._stored: dict[str, str] = {}  # name without prefix -> name in the file; shrinks as tensors are taken
        for name in checkpoint.tensors:
            plain = name.removeprefix(names.prefix)
            if plain in self._stored:
                raise CheckpointError(f"tensors {self._stored[plain]} and {name} are the same parameter")
            self._stored[plain] = name

    def load(self, builder: WeightsBuilder[MatrixT, NormT, TableT]) -> PartWeights[MatrixT, NormT, TableT]:
        spec, names, part = self._spec, self._names, self._part
        embedding, head, head_table = self._ends(builder)
        positions = self._positions() if names.positions else None
        self._reads = part.first
        embedding_norm = self._norm(builder, names.embedding_norm) if spec.embedding_norm else None
        layers = []
        for i in range(spec.n_layers):
            start = names.layer.format(i=i)
            self._reads = i in part.layers
            if self._reads:
                layers.append(self._layer(builder, start, i))
            else:
                self._layer(Nothing(), start, i)
        self._reads = part.last
        norm = self._norm(builder, names.norm)
        weights = PartWeights(
            embedding=embedding,
            positions=builder.table(positions) if positions and part.first else None,
            layers=layers,
            norm=norm if part.last else None,
            head=head,
            head_table=head_table,
            embedding_norm=embedding_norm if part.first else None,
        )
        left = [name for plain, name in self._stored.items() if not self._is_harmless(plain, name)]
        if left:
            raise CheckpointError(f"{len(left)} tensors are no parameters of this model, the first is {left[0]}")
        return weights

    def _is_harmless(self, plain: str, name: str) -> bool:
        """Whether a tensor that is no parameter may be there: buffers, and biases of zeros, which some writers add."""
        if any(re.fullmatch(pattern, plain) for pattern in self._names.ignored):
            return True
        of_a_matrix = plain.endswith(".bias") and f"{plain.removesuffix('bias')}weight" in self._taken
        return of_a_matrix and not self._checkpoint.read(name).any()

    def _numbers(self, parameter: Parameter) -> Floats:
        """Of a norm or a bias; none of layers that other workers have."""
        return parameter.floats() if self._reads else np.empty(0, np.float32)

    def _layer(self, builder: WeightsBuilder[MatrixT, NormT, TableT], start: str, i: int) -> Layer[MatrixT, NormT]:
        spec, names, part = self._spec, self._names, self._part
        dim = spec.head_dim
        q = range(part.heads.start * dim, part.heads.stop * dim)
        kv = range(part.kv_heads.start * dim, part.kv_heads.stop * dim)
        everything = range(spec.hidden_size)

        def norm(wanted: bool, name: str, size: int = spec.hidden_size) -> NormT | None:
            return self._norm(builder, start + name, size) if wanted else None

        def matrix(
            parts: Sequence[str],
            sizes: Sequence[int],
            own: Sequence[range],
            width: int,
            bias: bool,
            inputs: range | None = None,
            turned: Sequence[int] = (),
            gated: bool = False,
        ) -> MatrixT:
            """own: this shard's outputs of each part; inputs: its inputs, None = all of them."""
            taken = self._parts([f"{start}{name}.weight" for name in parts], sizes, own, width, inputs, turned)
            names = [f"{start}{name}.bias" for name in parts] if bias else []
            biases = [self._numbers(b) for b in self._parts(names, sizes, own, None, None, turned)] if bias else []
            added = bias and (inputs is None or part.shard == 0)  # once, where sums over shards are added up
            return builder.matrix(taken, biases if added else None, gated)

        heads = (len(part.heads), len(part.kv_heads))
        qkv = matrix(names.qkv, (spec.q_size, spec.kv_size, spec.kv_size), (q, kv, kv), spec.hidden_size, spec.qkv_bias,
                     turned=heads)  # fmt: skip
        out = matrix((names.out,), (spec.hidden_size,), (everything,), spec.q_size, spec.out_bias, inputs=q)

        def mlp(up: Sequence[str], down: str, size: int, own: range) -> Expert[MatrixT]:
            n_wide = 2 if spec.gated else 1
            return Expert(
                matrix(up, (size,) * n_wide, (own,) * n_wide, spec.hidden_size, spec.mlp_bias, gated=spec.gated),
                matrix((down,), (spec.hidden_size,), (everything,), size, spec.mlp_bias, inputs=own),
            )

        only, router, experts = None, None, []
        if spec.has_experts(i):
            router = builder.router(self._take(f"{start}{names.router}.weight", (spec.n_experts, spec.hidden_size)))
            for e in range(spec.n_experts):
                up = [name.format(e=e) for name in names.expert_up]
                experts.append(mlp(up, names.expert_down.format(e=e), spec.expert_size, part.expert_columns))
        else:
            only = mlp(names.up, names.down, spec.intermediate_size, part.columns)
        each = spec.qk_norm == "head"
        return Layer(
            norm(spec.pre_norm, names.attention_norm),
            qkv,
            out,
            norm(spec.pre_norm and not spec.shared_norm, names.mlp_norm),
            None if only is None else only.up,
            None if only is None else only.down,
            norm(spec.post_norm, names.post_attention_norm),
            norm(spec.post_norm, names.post_mlp_norm),
            norm(spec.qk_norm is not None, names.q_norm, dim if each else spec.q_size),
            norm(spec.qk_norm is not None, names.k_norm, dim if each else spec.kv_size),
            router,
            experts,
        )

    def _norm(self, builder: WeightsBuilder[MatrixT, NormT, TableT], name: str, size: int | None = None) -> NormT:
        """size: None = that of hidden states."""
        shape = (size or self._spec.hidden_size,)
        weight = self._numbers(self._take(name + ".weight", shape)) + np.float32(self._names.norm_offset)
        bias = None
        if self._spec.norm == "layer":
            stored = self._spec.norm_bias
            bias = self._numbers(self._take(name + ".bias", shape)) if stored else np.zeros_like(weight)
        return builder.norm(weight, bias)

    def _positions(self) -> Parameter:
        """The table of learned positions, from that of position 0 on."""
        skipped, n = self._names.skipped_positions, self._spec.context_length
        assert self._names.positions is not None
        table = self._table(self._names.positions, skipped + n)
        return table.cut(Cut((range(skipped, skipped + n),))) if skipped else table

    def _table(self, name: str, rows: int) -> Parameter:
        """[rows, hidden], looked up by row; stored so in every family."""
        return self._take(name + ".weight", (rows, self._spec.hidden_size))

    def _ends(
        self, builder: WeightsBuilder[MatrixT, NormT, TableT]
    ) -> tuple[TableT | None, MatrixT | None, TableT | None]:
        """Embedding, output head, and the head's table as in PartWeights: two tables, or one that is both."""
        spec, names, part = self._spec, self._names, self._part
        table = self._table(names.embedding, spec.vocab_size)
        if spec.tied:
            if f"{names.head}.weight" in self._stored:
                head = self._table(names.head, spec.vocab_size)
                if (part.first or part.last) and not np.array_equal(head.floats(), table.floats()):
                    logger.warning("%s.weight differs from the embedding it is tied to, and is ignored", names.head)
            if part.is_whole and not spec.head_bias:
                return *builder.tied(table), None
            head = table
        else:
            head = self._table(names.head, spec.vocab_size)
        bias = self._head_bias()
        if part.n_shards > 1:
            head = head.cut(Cut((part.vocabulary,)))
        embedding = builder.table(table) if part.first else None
        if not part.last:
            return embedding, None, None
        if spec.tied and not part.first and not spec.head_bias:
            return embedding, *builder.tied_head(head)
        return embedding, builder.matrix([head], bias), None

    def _head_bias(self) -> list[Floats] | None:
        if not self._spec.head_bias:
            return None
        part = self._part
        cut = Cut((part.vocabulary,)) if part.n_shards > 1 else None
        bias = self._take(f"{self._names.head}.bias", (self._spec.vocab_size,), cut=cut)
        return [bias.floats()] if part.last else None

    def _parts(
        self,
        names: Sequence[str],
        sizes: Sequence[int],
        own: Sequence[range],
        width: int | None,
        inputs: range | None,
        turned: Sequence[int],
    ) -> list[Parameter]:
        """The parts of a stacked matrix (bias: width None), or one tensor that is all of them.

        own: what this shard has of each part's outputs; inputs: of the inputs, None = all of them.
        turned: numbers of heads of the leading parts that rotary positions turn.
        """
        transposed = self._names.transposed and width is not None
        runs: list[tuple[range, ...]] = [(run,) for run in own]
        if len(names) == 1 and self._names.grouped and len(sizes) == 3:
            return [self._take_grouped(names[0], sum(sizes), width, transposed)]
        if len(names) == 1 and len(sizes) == 2:
            return self._take_gated(names[0], sizes, own, width, transposed)
        if len(names) == 1:
            starts = np.cumsum([0, *sizes])
            runs = [tuple(range(run.start + int(s), run.stop + int(s)) for run, s in zip(own, starts, strict=False))]
            sizes = (sum(sizes),)
        interleaved = [*turned, *(0 for _ in sizes)] if self._names.interleaved else [0] * len(sizes)
        parts = []
        for name, size, rows, n_turned in zip(names, sizes, runs, interleaved, strict=False):
            shape = (size,) if width is None else (width, size) if transposed else (size, width)
            cut = Cut(rows, inputs) if self._part.n_shards > 1 else None
            parts.append(self._take(name, shape, transposed, n_turned, cut))
        return parts

    def _take_gated(
        self, name: str, sizes: Sequence[int], own: Sequence[range], width: int | None, transposed: bool
    ) -> list[Parameter]:
        """The gate and what it multiplies, stored as one tensor, as two parameters: kernels read them in turns."""
        size = sum(sizes)
        shape = (size,) if width is None else (width, size) if transposed else (size, width)
        whole, starts = self._take(name, shape, transposed), (0, sizes[0])
        rows = [range(start + run.start, start + run.stop) for start, run in zip(starts, own, strict=True)]
        return [whole.cut(Cut((run,))) for run in rows]

    def _take_grouped(self, name: str, size: int, width: int | None, transposed: bool) -> Parameter:
        """Queries, keys and values [size, width] whose rows are stored K/V head by K/V head, put in the usual order."""
        runs = self._part.grouped_rows
        shape = (size,) if width is None else (width, size) if transposed else (size, width)
        return self._take(name, shape, transposed, 0, Cut(runs))

    def _take(
        self,
        name: str,
        shape: tuple[int, ...],
        transposed: bool = False,
        n_turned: int = 0,
        cut: Cut | None = None,
    ) -> Parameter:
        """A parameter that has not been taken yet. shape: as stored. Raises CheckpointError."""
        stored = self._stored.pop(name, None)
        self._taken.add(name)
        if stored is None:
            raise CheckpointError(f"tensor {name} of sizes {list(shape)} is missing")
        actual = self._checkpoint.tensors[stored].shape
        if actual != shape:
            raise CheckpointError(f"tensor {stored} has sizes {list(actual)}, the config asks for {list(shape)}")
        turned_dim = self._spec.rope.dim if n_turned and self._spec.rope else 0
        return Parameter(self._checkpoint, stored, transposed, n_turned, cut, turned_dim)
