"""NativeModel: a model whose every iteration is one call of the CPU kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.parameter import Floats
from orcaserve.model.rope import Rope
from orcaserve.model.spec import ACTIVATIONS, ModelSpec
from orcaserve.native import _kernels
from orcaserve.native.builder import NativeWeights, Table, row_bytes
from orcaserve.native.kv_region import KVRegion

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
    rope_dim: int
    rope_amplitude: float


class NativeModel:
    """A loaded model. Results of a request are the same to the bit, whatever runs beside it. Not thread-safe."""

    def __init__(self, spec: ModelSpec, weights: NativeWeights, team: _kernels.Team) -> None:
        """The team's threads run every iteration.

        Raises CheckpointError if the rope options make no sense, ValueError if weights do not have the spec's sizes.
        """
        _check_table(weights.embedding, spec.vocab_size, spec.hidden_size)
        if weights.positions is not None:
            _check_table(weights.positions, spec.context_length, spec.hidden_size)
        self.spec = spec
        self.weights = weights
        self._team = team
        self._rope = Rope(spec.rope) if spec.rope else None
        shape = Shape(
            hidden=spec.hidden_size,
            n_heads=spec.n_heads,
            n_kv_heads=spec.n_kv_heads,
            head_dim=spec.head_dim,
            intermediate=spec.intermediate_size,
            vocab=spec.vocab_size,
            norm=_NORMS[spec.norm],
            norm_eps=spec.norm_eps,
            activation=_ACTIVATIONS[ACTIVATIONS[spec.activation]],
            gated=spec.gated,
            attention_scale=spec.score_scale,
            rope_dim=spec.rope.dim if spec.rope else 0,
            rope_amplitude=self._rope.amplitude if self._rope else 1.0,
        )
        layers = [
            (layer.attention_norm, layer.qkv, layer.out, layer.mlp_norm, layer.up, layer.down)
            for layer in weights.layers
        ]
        self._native = _kernels.Model(
            shape, weights.embedding, weights.positions, layers, weights.norm, weights.head, spec.tied
        )
        self._logits = np.empty((0, spec.vocab_size), np.float32)

    def observe(self, token_ids: Int32s, layout: Layout, kv: KVRegion) -> list[NDArray[np.float64]]:
        """Runs the batch; the sums of squares of the inputs of each layer's qkv, out, up, down, and of the head."""
        matrices = [m for layer in self.weights.layers for m in (layer.qkv, layer.out, layer.up, layer.down)]
        sums = [np.zeros(matrix.n_in) for matrix in (*matrices, self.weights.head)]
        rows = np.arange(layout.n_tokens, dtype=np.int32)
        self.forward(token_ids, layout, kv, rows, sums)
        self._logits = np.empty((0, self.spec.vocab_size), np.float32)  # logits of all rows are large
        return sums

    def forward(
        self,
        token_ids: Int32s,
        layout: Layout,
        kv: KVRegion,
        rows: Int32s | None = None,
        observed: list[NDArray[np.float64]] | None = None,
    ) -> Floats:
        """token_ids [N], laid out as `layout` says -> logits [R, vocabulary], valid until the next call.

        rows: of the flat batch, those whose logits are wanted; None = the last one of every request. The K/V of all N
        tokens is in `kv` afterwards. observed: where `observe` adds up. Raises ValueError if anything would reach
        outside of its memory.
        """
        rows = layout.last_rows if rows is None else rows
        if len(rows) > len(self._logits):
            self._logits = np.empty((len(rows), self.spec.vocab_size), np.float32)
        logits = self._logits[: len(rows)]
        frequencies, choice = self._rope.frequencies(layout) if self._rope else (None, None)
        self._native.run(
            self._team,
            kv.native,
            layout.starts,
            layout.contexts,
            layout.page_tables,
            token_ids,
            None,
            rows,
            logits,
            frequencies,
            choice,
            None,
            observed,
        )
        return logits


def _check_table(table: Table, n_rows: int, width: int) -> None:
    format, rows = table
    expected = (n_rows, row_bytes(format, width))
    if rows.shape != expected:
        raise ValueError(f"a table of {format.name} rows is {rows.shape}, must be {expected}")
