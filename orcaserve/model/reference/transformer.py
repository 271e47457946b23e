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

import torch
from torch import Tensor

from orcaserve.model.layout import Layout
from orcaserve.model.reference.attention import Attention
from orcaserve.model.reference.kv_region import KVRegion
from orcaserve.model.reference.layers import Embedding, Linear, Norm, mlp, rotate
from orcaserve.model.rope import Rope
from orcaserve.model.spec import ModelSpec
from orcaserve.model.weights import Layer, Weights


class Transformer:
    """A loaded model. Remembers nothing between calls but its weights.

    n_steps: halves of layers that were run or, on a device that runs them later, begun; any thread may look.
    """

    def __init__(self, spec: ModelSpec, weights: Weights[Linear, Norm, Embedding]) -> None:
        self.spec = spec
        self.weights = weights
        self.attention = Attention(spec.score_scale)
        self.device = weights.norm.weight.device
        self.dtype = weights.norm.weight.dtype
        self._rope = Rope(spec.rope) if spec.rope else None
        self.n_steps = 0

    @torch.inference_mode()
    def forward(self, token_ids: Tensor, layout: Layout, kv: KVRegion) -> Tensor:
        """token_ids [N] int64, laid out as `layout` says -> logits [R, vocabulary] float32, one row per request.

        Row r belongs to the last token of request r. The K/V of all N tokens is in `kv` afterwards.
        """
        x = self.weights.embedding(token_ids)
        if self.weights.positions is not None:
            x = x + self.weights.positions(torch.from_numpy(layout.positions).long().to(self.device))
        angles = self._angles(layout)
        for index, layer in enumerate(self.weights.layers):
            q, k, v = self._queries_keys_values(layer, layer.attention_norm(x), angles)
            x = x + layer.out(self.attention(q, k, v, index, layout, kv))
            self.n_steps += 1
            x = x + mlp(layer.mlp_norm(x), layer.up, layer.down, self.spec.activation, self.spec.gated)
            self.n_steps += 1
        last = x[torch.from_numpy(layout.last_rows).long().to(self.device)]
        return self.weights.head(self.weights.norm(last)).float()

    def _queries_keys_values(
        self, layer: Layer[Linear, Norm], x: Tensor, angles: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[N, hidden] -> [N, heads, head_dim] and twice [N, kv heads, head_dim], positions in the first two."""
        n_heads, n_kv_heads = self.spec.n_heads, self.spec.n_kv_heads
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
