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
from functools import partial

import torch
from torch import Tensor

from orcaserve.model.adapter import Adapter
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.part import Part
from orcaserve.model.reference.adapters import Adapters, Made
from orcaserve.model.reference.attention import Attention
from orcaserve.model.reference.kv_region import KVRegion
from orcaserve.model.reference.layers import Embedding, Linear, Norm, experts, mlp, rotate
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
        alibi = spec.alibi[part.heads.start : part.heads.stop]
        self.attention = Attention(spec.score_scale, spec.attention_softcap, alibi)
        self.device = weights.layers[0].out.weight.device
        self.dtype = weights.layers[0].out.weight.dtype
        self._all_reduce = all_reduce
        self._ropes = {rope: Rope(rope) for rope in (spec.rope, spec.local_rope) if rope is not None}
        self._adapters = Adapters(self.device, self.dtype)
        self.n_steps = 0

    def make_adapter(self, adapter: Adapter) -> Made:
        """In tensors. It is of this part. From any thread."""
        return self._adapters.make(adapter)

    def add_adapter(self, number: int, made: Made) -> None:
        """From now on layouts may name it."""
        self._adapters.add(number, made)

    def remove_adapter(self, number: int) -> None:
        """No layout names it any more. Of no effect for an unknown one."""
        self._adapters.remove(number)

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
        spec = self.spec
        angles = {rope: self._angles(rope, layout) for rope in self._ropes.values()}
        for index, layer in enumerate(self._adapters.layers(self.weights.layers, layout)):
            number = self.part.layers[index]
            normed = _norm(layer.attention_norm, x)
            rope = spec.rope_of(number)
            turn = None if rope is None else partial(self._turn, self._ropes[rope], angles[self._ropes[rope]])
            q, k, v = self._queries_keys_values(layer, normed, turn)
            attended = self._sum(layer.out(self.attention(q, k, v, index, layout, kv, spec.window(number))))
            added = x + spec.residual_scale * _norm(layer.post_attention_norm, attended)
            self.n_steps += 1
            if not spec.shared_norm:
                normed = _norm(layer.mlp_norm, x if spec.parallel else added)
            widened = self._sum(self._mlp(layer, normed))
            x = added + spec.residual_scale * _norm(layer.post_mlp_norm, widened)
            self.n_steps += 1
        return x

    def _mlp(self, layer: Layer[Linear, Norm], x: Tensor) -> Tensor:
        spec = self.spec
        if layer.router is not None:
            return experts(x, layer.router, layer.experts, spec)
        assert layer.up is not None and layer.down is not None, "a layer without experts has an MLP"
        return mlp(x, layer.up, layer.down, spec.activation, spec.gated)

    @torch.inference_mode()
    def head(self, states: Tensor, rows: Int32s) -> Tensor:
        """Logits of some rows of hidden states after the last layer, float32."""
        assert self.weights.norm is not None and self.weights.head is not None
        self.n_steps += 1
        some = states[torch.from_numpy(rows).long().to(self.device)]
        logits = self.weights.head(self.weights.norm(some)).float() * self.spec.logit_scale
        cap = self.spec.logit_softcap
        return cap * torch.tanh(logits / cap) if cap else logits

    @torch.inference_mode()
    def normed(self, states: Tensor, rows: Int32s) -> Tensor:
        """Some rows of hidden states after the last layer, after the last norm, float32."""
        assert self.weights.norm is not None
        normed: Tensor = self.weights.norm(states[torch.from_numpy(rows).long().to(self.device)]).float()
        return normed

    def _embed(self, token_ids: Tensor, layout: Layout) -> Tensor:
        assert self.weights.embedding is not None
        x = _norm(self.weights.embedding_norm, self.weights.embedding(token_ids) * self.spec.embedding_scale)
        if self.weights.positions is None:
            return x
        return x + self.weights.positions(torch.from_numpy(layout.positions).long().to(self.device))

    def _sum(self, x: Tensor) -> Tensor:
        """Over the shards."""
        if self._all_reduce is not None:
            self._all_reduce(x)
        return x

    def _queries_keys_values(
        self, layer: Layer[Linear, Norm], x: Tensor, turn: Callable[[Tensor], Tensor] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[N, hidden] -> [N, heads, head_dim] and twice [N, kv heads, head_dim], positions in the first two."""
        n_heads, n_kv_heads = len(self.part.heads), len(self.part.kv_heads)
        heads = layer.qkv(x).view(len(x), -1, self.spec.head_dim)
        q, k, v = torch.split(heads, [n_heads, n_kv_heads, n_kv_heads], dim=1)
        q, k = self._normed_heads(layer.q_norm, q), self._normed_heads(layer.k_norm, k)
        return (q, k, v) if turn is None else (turn(q), turn(k), v)

    def _normed_heads(self, norm: Norm | None, heads: Tensor) -> Tensor:
        """[N, heads, head_dim]."""
        if norm is None or self.spec.qk_norm == "head":
            return _norm(norm, heads)
        return norm(heads.flatten(1)).view_as(heads)

    def _turn(self, rope: Rope, angles: Tensor, heads: Tensor) -> Tensor:
        return rotate(heads, angles, rope.amplitude)

    def _angles(self, rope: Rope, layout: Layout) -> Tensor:
        """[N, pairs] float32, by how much every row's heads are turned."""
        sets, choice = rope.frequencies(layout)
        rows = sets if choice is None else sets[choice.repeat(layout.lengths)]
        return (torch.from_numpy(layout.positions)[:, None].float() * torch.from_numpy(rows)).to(self.device)


def _norm(norm: Norm | None, x: Tensor) -> Tensor:
    """As it is, where the family has none."""
    return x if norm is None else norm(x)
