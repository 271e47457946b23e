"""Transformer: the one skeleton of every family, on flat [tokens, hidden] tensors.

token ids [N]
  embedding                      tokens of all requests together: weights are read once for everybody
  for every layer:
    norm, QKV Linear, rotary positions
    split . attention . merge    the only step that knows which request a row belongs to
    output Linear, residual
    norm, MLP, residual
  norm and head, for the last row of every request only
logits [R, vocabulary]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orcaserve.model.attention import Attention
from orcaserve.model.kv_manager import KVManager
from orcaserve.model.layers import MLP, Embedding, Linear, Norm, StoredEmbedding
from orcaserve.model.layout import Layout
from orcaserve.model.rope import Rope, rotate
from orcaserve.model.spec import ModelSpec

# Row counts that the packed Linears are run with. For every new count the library builds code, which costs it about a
# millisecond and half a megabyte each time: so there are few, and batches are filled up with rows nobody looks at.
ROWS = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights."""

    attention_norm: Norm
    qkv: Linear
    out: Linear
    mlp_norm: Norm
    mlp: MLP


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a model. positions: the learned ones, or None."""

    embedding: Embedding | StoredEmbedding
    positions: Embedding | None
    layers: Sequence[Layer]
    norm: Norm
    head: Linear


class Transformer:
    """A loaded model. Not thread-safe; remembers nothing between calls but its weights."""

    def __init__(self, spec: ModelSpec, weights: Weights, attention: Attention) -> None:
        self.spec = spec
        self.weights = weights
        self.attention = attention
        self.device = weights.norm.weight.device
        self.dtype = weights.norm.weight.dtype
        self._rope = Rope(spec.rope, self.device) if spec.rope else None

    @torch.inference_mode()
    def forward(self, token_ids: Tensor, layout: Layout, kv: KVManager) -> Tensor:
        """token_ids [N] int64, laid out as `layout` says -> logits [R, vocabulary] float32, one row per request.

        Row r belongs to the last token of request r. The K/V of all N tokens is in `kv` afterwards.
        """
        x = self.embed(token_ids, layout)
        x = self.run_layers(x, layout, kv)
        return self.logits(x, layout)

    def embed(self, token_ids: Tensor, layout: Layout) -> Tensor:
        """[N] -> [rows, hidden], rows >= N: see ROWS."""
        x = self.weights.embedding(_fill(token_ids))
        if self.weights.positions is not None:
            x += self.weights.positions(_fill(layout.positions))
        return x

    def run_layers(self, x: Tensor, layout: Layout, kv: KVManager) -> Tensor:
        """[rows, hidden] -> [rows, hidden]; overwrites x."""
        n_heads = [self.spec.n_heads, self.spec.n_kv_heads, self.spec.n_kv_heads]
        parts = torch.split(x, ROWS[-1])
        factors: list[tuple[Tensor, ...]] = [()] * len(parts)
        if self._rope:
            both = self._rope.factors(layout, self.dtype)
            factors = list(zip(*(torch.split(_fill(factor), ROWS[-1]) for factor in both), strict=True))
        for index, layer in enumerate(self.weights.layers):
            heads = self._all_heads(layer, parts, factors)[: layout.n_tokens]
            q, k, v = torch.split(heads, n_heads, dim=1)
            attended = self.attention(q, k, v, index, layout, kv)
            for part, merged in zip(parts, torch.split(_fill(attended), ROWS[-1]), strict=True):
                part += layer.out(merged)
                part += layer.mlp(layer.mlp_norm(part))
        return x

    def _heads(self, layer: Layer, part: Tensor, factors: Sequence[Tensor]) -> Tensor:
        """[rows, hidden] -> [rows, q + k + v heads, head_dim], positions in them."""
        heads = layer.qkv(layer.attention_norm(part)).view(len(part), -1, self.spec.head_dim)
        if factors:
            rotate(heads[:, : self.spec.n_heads + self.spec.n_kv_heads], *factors)
        return heads

    def _all_heads(self, layer: Layer, parts: Sequence[Tensor], factors: Sequence[Sequence[Tensor]]) -> Tensor:
        """_heads of all rows, a part at a time: it fits the cache, and only one is in memory twice."""
        first = self._heads(layer, parts[0], factors[0])
        if len(parts) == 1:
            return first
        heads = first.new_empty(sum(map(len, parts)), *first.shape[1:])
        for target, part, factor in zip(torch.split(heads, ROWS[-1])[1:], parts[1:], factors[1:], strict=True):
            target.copy_(self._heads(layer, part, factor))
        heads[: len(first)] = first
        return heads

    def logits(self, x: Tensor, layout: Layout) -> Tensor:
        """[rows, hidden] -> [R, vocabulary] float32."""
        last = self.weights.norm(_fill(x[layout.last_rows]))
        return _join([self.weights.head(part) for part in torch.split(last, ROWS[-1])])[: layout.n_requests].float()


def _rows(n: int) -> int:
    """The smallest number of rows >= n that parts of ROWS[-1] and one of ROWS add up to."""
    whole, rest = divmod(n, ROWS[-1])
    return whole * ROWS[-1] + (next(rows for rows in ROWS if rows >= rest) if rest else 0)


def _fill(x: Tensor) -> Tensor:
    """[n, ...] -> [_rows(n), ...], the new rows zero."""
    missing = _rows(x.shape[0]) - x.shape[0]
    return torch.cat((x, x.new_zeros(missing, *x.shape[1:]))) if missing else x


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
