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

A part of a model runs its own layers of that, from hidden states to hidden states if the ends are elsewhere; a shard of
a layer adds up `output Linear` and `MLP` over all shards.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.part import Part
from orcaserve.model.reference.attention import Attention
from orcaserve.model.reference.kv_region import KVRegion
from orcaserve.model.reference.layers import Embedding, Linear, Norm, mlp, rotate
from orcaserve.model.rope import Rope
from orcaserve.model.spec import ModelSpec
from orcaserve.model.weights import Layer, PartWeights, Weights

AllReduce = Callable[[Tensor], None]


class Transformer:
    """A loaded model, or a part of one. Remembers nothing between calls but its weights.

    n_steps: halves of layers, and heads, that were run or, on a device that runs them later, begun; for any thread.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights[Linear, Norm, Embedding] | PartWeights[Linear, Norm, Embedding],
        part: Part | None = None,
        all_reduce: AllReduce | None = None,
    ) -> None:
        """part: what of the model `weights` are, None = all of it. all_reduce: with more than one shard, sums a tensor
        [N, hidden] in place over the shards; called twice per layer."""
        self.part = part = part or Part.whole(spec)
        if (part.n_shards > 1) != (all_reduce is not None):
            raise ValueError(f"{part.n_shards} shards, and {'no' if all_reduce is None else 'an'} all_reduce")
        self.spec = spec
        self.weights = weights
        self.attention = Attention(spec.score_scale)
        self.device = weights.layers[0].attention_norm.weight.device
        self.dtype = weights.layers[0].attention_norm.weight.dtype
        self._all_reduce = all_reduce
        self._rope = Rope(spec.rope) if spec.rope else None
        self.n_steps = 0

    @torch.inference_mode()
    def forward(self, inputs: Tensor, layout: Layout, kv: KVRegion) -> Tensor:
        """Token ids [N] int64, laid out as `layout` says -> logits [R, vocabulary] float32, one row per request.

        Row r belongs to the last token of request r. The K/V of all N tokens is in `kv` afterwards.
        A part without the first layers takes hidden states [N, hidden] in the place of ids; one without the last layers
        gives hidden states; one of several shards, the logits of its own vocabulary.
        """
        x = self.states(inputs, layout, kv)
        return self.head(x, layout.last_rows) if self.part.last else x

    @torch.inference_mode()
    def states(self, inputs: Tensor, layout: Layout, kv: KVRegion) -> Tensor:
        """As `forward`, but hidden states after the last layer that it has, [N, hidden]."""
        x = self._embed(inputs, layout) if self.part.first else inputs
        angles = self._angles(layout)
        for index, layer in enumerate(self.weights.layers):
            q, k, v = self._queries_keys_values(layer, layer.attention_norm(x), angles)
            x = x + self._sum(layer.out(self.attention(q, k, v, index, layout, kv)))
            self.n_steps += 1
            x = x + self._sum(mlp(layer.mlp_norm(x), layer.up, layer.down, self.spec.activation, self.spec.gated))
            self.n_steps += 1
        return x

    @torch.inference_mode()
    def head(self, states: Tensor, rows: Int32s) -> Tensor:
        """Logits of some rows of hidden states after the last layer, float32."""
        assert self.weights.norm is not None and self.weights.head is not None
        self.n_steps += 1
        some = states[torch.from_numpy(rows).long().to(self.device)]
        return self.weights.head(self.weights.norm(some)).float()

    @torch.inference_mode()
    def normed(self, states: Tensor, rows: Int32s) -> Tensor:
        """Some rows of hidden states after the last layer, after the last norm, float32."""
        assert self.weights.norm is not None
        normed: Tensor = self.weights.norm(states[torch.from_numpy(rows).long().to(self.device)]).float()
        return normed

    def _embed(self, token_ids: Tensor, layout: Layout) -> Tensor:
        assert self.weights.embedding is not None
        x = self.weights.embedding(token_ids)
        if self.weights.positions is None:
            return x
        return x + self.weights.positions(torch.from_numpy(layout.positions).long().to(self.device))

    def _sum(self, x: Tensor) -> Tensor:
        """Over the shards."""
        if self._all_reduce is not None:
            self._all_reduce(x)
        return x

    def _queries_keys_values(
        self, layer: Layer[Linear, Norm], x: Tensor, angles: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[N, hidden] -> [N, heads, head_dim] and twice [N, kv heads, head_dim], positions in the first two."""
        n_heads, n_kv_heads = len(self.part.heads), len(self.part.kv_heads)
        heads = layer.qkv(x).view(len(x), -1, self.spec.head_dim)
        q, k, v = torch.split(heads, [n_heads, n_kv_heads, n_kv_heads], dim=1)
        if angles is None or self._rope is None:
            return q, k, v
        return rotate(q, angles, self._rope.amplitude), rotate(k, angles, self._rope.amplitude), v

    def _angles(self, layout: Layout) -> Tensor | None:
        """[N, pairs] float32, by how much every row's heads are turned; None without rotary positions."""
        if self._rope is None:
            return None
        sets, choice = self._rope.frequencies(layout)
        rows = sets if choice is None else sets[choice.repeat(layout.lengths)]
        return (torch.from_numpy(layout.positions)[:, None].float() * torch.from_numpy(rows)).to(self.device)
