"""NativeModel: a model whose every iteration is one call of the CPU kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from orcaserve.model.adapter import Adapter
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.parameter import Floats
from orcaserve.model.part import Part
from orcaserve.model.rope import Rope
from orcaserve.model.spec import ACTIVATIONS, ModelSpec
from orcaserve.model.weights import Expert, Layer, PartWeights
from orcaserve.native import _kernels
from orcaserve.native.adapter import pack_adapter
from orcaserve.native.builder import NativePartWeights, NativeWeights, Norm, Table, row_bytes
from orcaserve.native.kv_region import KVRegion
from orcaserve.native.packing import PackedMatrix
from orcaserve.native.support import check_supported

AllReduce = Callable[[Floats, int], None]

_NORMS = {"rms": 0, "layer": 1}
_ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3}


@dataclass(frozen=True, slots=True)
class Shape:
    """What the kernels are told of a model: csrc/model.h's Model, less the weights."""

    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    norm: int
    norm_eps: float
    activation: int
    gated: bool
    attention_scale: float
    attention_softcap: float
    alibi: Floats | None
    ropes: tuple[tuple[int, float], ...]  # dimensions that are turned, and the amplitude
    norms_all_heads: bool
    parallel: bool
    n_experts: int
    n_chosen: int
    expert_columns: int
    shares_of_chosen: bool
    embedding_scale: float
    residual_scale: float
    logit_scale: float
    logit_softcap: float


@dataclass(frozen=True, slots=True)
class NativeLayer:
    """What they are told of a layer. rope: which of the shape's ropes turns it, -1 = none."""

    attention_norm: Norm | None
    qkv: PackedMatrix
    out: PackedMatrix
    mlp_norm: Norm | None
    up: PackedMatrix | None
    down: PackedMatrix | None
    router: PackedMatrix | None
    experts: Sequence[Expert[PackedMatrix]]
    post_attention_norm: Norm | None
    post_mlp_norm: Norm | None
    q_norm: Norm | None
    k_norm: Norm | None
    window: int
    rope: int


class NativeModel:
    """A loaded model. Results of a request are the same to the bit, whatever runs beside it. Not thread-safe."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: NativeWeights | NativePartWeights,
        team: _kernels.Team,
        part: Part | None = None,
        all_reduce: AllReduce | None = None,
    ) -> None:
        """The team's threads run every iteration.

        part: what of the model `weights` are, None = all of it. all_reduce: with more than one shard, sums an array
        [floats] in place over the shards, and is told how many floats the next sum has, 0 = not known; called on the
        thread that called `forward`, twice per layer, for long batches more often.
        Raises UnsupportedModel if the kernels cannot run it, CheckpointError if the rope options make no sense,
        ValueError if weights do not have the spec's sizes.
        """
        check_supported(spec)
        self.part = part = part or Part.whole(spec)
        if (part.n_shards > 1) != (all_reduce is not None):
            raise ValueError(f"{part.n_shards} shards, and {'no' if all_reduce is None else 'an'} all_reduce")
        if weights.embedding is not None:
            _check_table(weights.embedding, spec.vocab_size, spec.hidden_size)
        if weights.positions is not None:
            _check_table(weights.positions, spec.context_length, spec.hidden_size)
        self.spec = spec
        self.weights = weights
        self._team = team
        self._all_reduce: object | None = None if all_reduce is None else _on_addresses(all_reduce)
        ropes = [rope for rope in (spec.rope, spec.local_rope) if rope is not None]
        self._ropes = [Rope(rope) for rope in ropes]
        alibi = spec.alibi[part.heads.start : part.heads.stop]
        shape = Shape(
            hidden=spec.hidden_size,
            n_heads=len(part.heads),
            n_kv_heads=len(part.kv_heads),
            head_dim=spec.head_dim,
            intermediate=len(part.columns),
            vocab=len(part.vocabulary),
            norm=_NORMS[spec.norm],
            norm_eps=spec.norm_eps,
            activation=_ACTIVATIONS[ACTIVATIONS[spec.activation]],
            gated=spec.gated,
            attention_scale=spec.score_scale,
            attention_softcap=spec.attention_softcap,
            alibi=np.array(alibi, np.float32) if alibi else None,
            ropes=tuple((rope.spec.dim, rope.amplitude) for rope in self._ropes),
            norms_all_heads=spec.qk_norm == "all",
            parallel=spec.parallel,
            n_experts=spec.n_experts,
            n_chosen=spec.n_chosen,
            expert_columns=len(part.expert_columns),
            shares_of_chosen=spec.shares_of_chosen,
            embedding_scale=spec.embedding_scale,
            residual_scale=spec.residual_scale,
            logit_scale=spec.logit_scale,
            logit_softcap=spec.logit_softcap,
        )
        layers = [_layer(spec, number, layer) for number, layer in zip(part.layers, weights.layers, strict=True)]
        self._native = _kernels.Model(
            shape,
            weights.embedding,
            weights.positions,
            layers,
            weights.norm,
            weights.head,
            _head_table(part, weights),
            weights.embedding_norm,
        )
        self._adapters: dict[int, _kernels.Adapter] = {}
        self._logits = np.empty((0, shape.vocab), np.float32)
        self._head: _kernels.Model | None = None
        if part.last:  # the same without layers: from hidden states to logits
            self._head = _kernels.Model(
                replace(shape, ropes=()), None, None, [], weights.norm, weights.head, _head_table(part, weights)
            )

    def sum_by(self, sums: object) -> None:
        """From now on sums over shards are made by these _kernels.SharedSums, on which no Python is run."""
        self._all_reduce = sums

    def make_adapter(self, adapter: Adapter) -> _kernels.Adapter:
        """As the kernels read it. It is of this part. From any thread."""
        return _kernels.Adapter(self._native, pack_adapter(adapter, self.weights.layers))

    def add_adapter(self, number: int, made: _kernels.Adapter) -> None:
        """From now on layouts may name it."""
        self._adapters[number] = made

    def remove_adapter(self, number: int) -> None:
        """No layout names it any more. Of no effect for an unknown one."""
        self._adapters.pop(number, None)

    def observe(
        self, inputs: Int32s | Floats, layout: Layout, kv: KVRegion
    ) -> tuple[list[NDArray[np.float64]], Floats]:
        """Runs the batch: the sums of squares of the inputs of each layer's matrices, in `observed_inputs`' order, and
        of the head (zeros without one); and the hidden states, or logits of all rows."""
        sizes = [n for layer in self.weights.layers for n in observed_inputs(self.spec, layer)]
        sums = [*map(np.zeros, sizes), np.zeros(self.spec.hidden_size)]
        out = self.forward(inputs, layout, kv, np.arange(layout.n_tokens, dtype=np.int32), sums)
        self._logits = np.empty((0, self._logits.shape[1]), np.float32)  # logits of all rows are large
        return sums, out

    def forward(
        self,
        inputs: Int32s | Floats,
        layout: Layout,
        kv: KVRegion,
        rows: Int32s | None = None,
        observed: list[NDArray[np.float64]] | None = None,
        states: Floats | None = None,
    ) -> Floats:
        """Token ids [N], laid out as `layout` says -> logits [R, vocabulary], valid until the next call.

        A part without the first layers takes hidden states [N, hidden] in the place of ids, and writes over them. A
        part without the last ones gives hidden states; one of several shards, the logits of its own vocabulary.

        rows: of the flat batch, those whose logits are wanted; None = the last one of every request. The K/V of all N
        tokens is in `kv` afterwards. observed: where `observe` adds up. states: for a part with the first layers and
        the last ones, where hidden states after the last layer are to be; without the first layers, they are where the
        inputs were. Raises ValueError if anything would reach outside of its memory, and what `all_reduce` raises.
        """
        ids = cast(Int32s, inputs) if self.part.first else None
        hidden = states if self.part.first else cast(Floats, inputs)
        if hidden is None and not self.part.last:
            hidden = np.empty((layout.n_tokens, self.spec.hidden_size), np.float32)
        logits = None
        if self.part.last:
            rows = layout.last_rows if rows is None else rows
            if len(rows) > len(self._logits):
                self._logits = np.empty((len(rows), self._logits.shape[1]), np.float32)
            logits = self._logits[: len(rows)]
        turns = [rope.frequencies(layout) for rope in self._ropes]
        self._native.run(
            self._team,
            kv.native,
            layout.starts,
            layout.contexts,
            layout.page_tables,
            ids,
            hidden,
            rows if self.part.last else None,
            logits,
            [frequencies for frequencies, _ in turns],
            [choice for _, choice in turns],
            self._all_reduce,
            observed,
            layout.shares,
            None if layout.adapters is None else [self._adapters[n] if n else None for n in layout.adapters],
        )
        result = hidden if logits is None else logits
        assert result is not None
        return result

    def room_for(self, layout: Layout) -> Floats:
        """Where `forward` may put hidden states, [N, hidden]."""
        return np.empty((layout.n_tokens, self.spec.hidden_size), np.float32)

    def normed(self, states: Floats) -> Floats:
        """Hidden states after the last layer [N, hidden] -> those after the last norm."""
        assert self.weights.norm is not None, "this part has the last norm"
        return _normed(states, self.weights.norm, self.spec)

    def head(self, states: Floats, kv: KVRegion) -> Floats:
        """Hidden states after the last layer [N, hidden] -> their logits, as `forward` gives them: the same to the bit.

        kv: any region of this model; nothing in it is read or changed.
        """
        assert self._head is not None, "this part has the head"
        n = len(states)
        logits = np.empty((n, self._logits.shape[1]), np.float32)
        starts, contexts = np.array([0, n], np.int32), np.zeros(1, np.int32)
        pages = np.zeros((1, -(-n // kv.page_size)), np.int32)
        every = np.arange(n, dtype=np.int32)
        self._head.run(self._team, kv.native, starts, contexts, pages, None, states, every, logits, [], [], None, None)
        return logits


def observed_inputs(spec: ModelSpec, layer: Layer[PackedMatrix, Norm]) -> list[int]:
    """Inputs of a layer's matrices that are observed: of qkv, out, up (of all experts, which read the same) and down,
    or each expert's. Every layer has as many: 0 stands for those that others have."""
    downs = [layer.down] if layer.down is not None else [expert.down for expert in layer.experts]
    sizes = [layer.qkv.n_in, layer.out.n_in, spec.hidden_size, *(down.n_in for down in downs)]
    return sizes + [0] * (n_observed(spec) - len(sizes))


def n_observed(spec: ModelSpec) -> int:
    """csrc/model.h's observed_matrices."""
    return 3 + max(spec.n_experts, 1)


def _layer(spec: ModelSpec, number: int, layer: Layer[PackedMatrix, Norm]) -> NativeLayer:
    """number: of the layer in the model."""
    rope = spec.rope_of(number)
    ropes = [known for known in (spec.rope, spec.local_rope) if known is not None]
    mlp_norm = layer.attention_norm if spec.shared_norm else layer.mlp_norm
    return NativeLayer(
        layer.attention_norm,
        layer.qkv,
        layer.out,
        mlp_norm,
        layer.up,
        layer.down,
        layer.router,
        layer.experts,
        layer.post_attention_norm,
        layer.post_mlp_norm,
        layer.q_norm,
        layer.k_norm,
        spec.window(number),
        -1 if rope is None else ropes.index(rope),
    )


def _normed(states: Floats, norm: Norm, spec: ModelSpec) -> Floats:
    """Each row by itself, in float64: the same to the bit whatever stands beside it."""
    weight, bias = norm
    x = states.astype(np.float64)
    if spec.norm == "layer":
        x -= x.mean(axis=1, keepdims=True)
    x /= np.sqrt(np.square(x).mean(axis=1, keepdims=True) + spec.norm_eps)
    x *= weight
    return (x if bias is None else x + bias).astype(np.float32)


def _head_table(part: Part, weights: NativeWeights | NativePartWeights) -> Table | None:
    """The rows of a tied head as the checkpoint stores them, from which the logits that matter are computed anew."""
    if not (part.spec.tied and part.last):
        return None
    if weights.embedding is None:
        assert isinstance(weights, PartWeights)
        if weights.head_table is not None:
            _check_table(weights.head_table, len(part.vocabulary), part.spec.hidden_size)
        return weights.head_table
    format, rows = weights.embedding
    return format, rows[part.vocabulary.start : part.vocabulary.stop]


def _on_addresses(all_reduce: AllReduce) -> Callable[[int, int, int], None]:
    """What the kernels call, with the address and the number of the floats."""

    def call(address: int, n: int, n_next: int) -> None:
        all_reduce(np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (n,)), n_next)

    return call


def _check_table(table: Table, n_rows: int, width: int) -> None:
    format, rows = table
    expected = (n_rows, row_bytes(format, width))
    if rows.shape != expected:
        raise ValueError(f"a table of {format.name} rows is {rows.shape}, must be {expected}")
