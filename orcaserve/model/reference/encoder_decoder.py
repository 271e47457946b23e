"""EncoderDecoder: the one skeleton of every family with two stacks, on flat [tokens, hidden] tensors.

token ids [N], of requests that begin (source, start of the output) and of all others (newest token)
  encoder, for all source tokens together [S, hidden]
    embedding; for every layer:  attention, request by request and in both directions; MLP
    for every layer of the decoder: keys and values of its outputs -> the source's slots        (cross-attention's)
  decoder, for all other tokens together [N - S, hidden]
    embedding; for every layer:
      QKV Linear; keys and values -> the tokens' own slots
      split . attention to the tokens of the request up to itself . merge
      query Linear, split . attention to the request's source slots . merge
      MLP
  head, for the last row of every request only
logits [R, vocabulary]

So every Linear's weights are read once for all requests of an iteration, and attention alone knows borders between
requests: selective batching, for both kinds of attention.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from orcaserve.model.encoder_decoder.loader import EncoderDecoderFiles
from orcaserve.model.encoder_decoder.sides import Sides
from orcaserve.model.encoder_decoder.spec import EncoderDecoderSpec, StackSpec
from orcaserve.model.encoder_decoder.weights import Cross, EncoderDecoderWeights, Stack
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.reference.attention import merge, split
from orcaserve.model.reference.builder import DTYPES, TorchBuilder
from orcaserve.model.reference.kv_region import KVRegion
from orcaserve.model.reference.layers import Embedding, Linear, Norm, mlp

FORCED = 1e4  # what lifts a token above, or pushes it below, all others: no bias that a request may set comes near


class EncoderDecoder:
    """A loaded model. Remembers nothing between calls but its weights.

    n_steps: parts of layers, and heads, that were run or begun; for any thread.
    """

    def __init__(self, spec: EncoderDecoderSpec, weights: EncoderDecoderWeights[Linear, Norm, Embedding]) -> None:
        self.spec = spec
        self.weights = weights
        table = weights.embedding.weight
        self.device, self.dtype = table.device, table.dtype
        self.n_steps = 0
        bias = np.zeros(spec.vocab_size, np.float32) if weights.head_bias is None else weights.head_bias.copy()
        bias[list(spec.never)] -= FORCED
        self._head_bias = torch.from_numpy(bias).to(self.device)

    @torch.inference_mode()
    def forward(self, token_ids: Tensor, layout: Layout, kv: KVRegion) -> Tensor:
        """Token ids [N] int64, laid out as `layout` says -> logits [R, vocabulary] float32, one row per request.

        Row r belongs to the last token of request r. The K/V of all N tokens is in `kv` afterwards: of source tokens
        for cross-attention, of the others for self-attention.
        """
        sides = Sides.of(layout, kv.page_size)
        if sides.sources is not None:
            self._read(token_ids[self._rows(sides.source_rows)], sides, kv, layout)
        x = self._decode(token_ids[self._rows(sides.decoder_rows)], sides, kv)
        return self._head(x[self._rows(sides.decoder.last_rows)], sides.decoder)

    def _read(self, token_ids: Tensor, sides: Sides, kv: KVRegion, layout: Layout) -> None:
        """The encoder, over the sources of all requests that begin; and its outputs' keys and values."""
        assert sides.sources is not None
        spec, stack, own = self.spec, self.weights.encoder, sides.sources
        scale = spec.score_scale(spec.encoder)
        x = self._embed(token_ids, own, stack)
        biases = [self._distances(stack, n, n, 0, both_ways=True) for n in own.lengths.tolist()]
        for layer in stack.layers:
            normed = layer.attention_norm(x) if spec.pre_norm else x
            q, k, v = _heads(layer.qkv(normed), spec.encoder, 3)
            parts = zip(split(q, own), split(k, own), split(v, own), biases, strict=True)
            x = self._add(x, layer.out(merge([_attend(*part, scale) for part in parts]).flatten(1)))
            x = x if spec.pre_norm else layer.attention_norm(x)
            x = self._mlp(x, layer.mlp_norm, layer.up, layer.down)
        if stack.norm is not None:
            x = stack.norm(x)
        tables = [table for table, new in zip(sides.source_tables, layout.contexts == 0, strict=True) if new]
        for index, layer in enumerate(self.weights.decoder.layers):
            assert layer.cross is not None
            k, v = _heads(layer.cross.kv(x), spec.decoder, 2)
            for table, key, value in zip(tables, split(k, own), split(v, own), strict=True):
                kv.write(index, table, 0, key, value)
            self.n_steps += 1

    def _decode(self, token_ids: Tensor, sides: Sides, kv: KVRegion) -> Tensor:
        """The decoder, over the other tokens of all requests -> hidden states [N - S, hidden]."""
        spec, stack, own = self.spec, self.weights.decoder, sides.decoder
        scale = spec.score_scale(spec.decoder)
        x = self._embed(token_ids, own, stack)
        pieces = list(zip(own.lengths.tolist(), own.contexts.tolist(), own.page_tables, strict=True))
        biases = [self._distances(stack, n, context + n, context, both_ways=False) for n, context, _ in pieces]
        for index, layer in enumerate(stack.layers):
            normed = layer.attention_norm(x) if spec.pre_norm else x
            outputs = []
            projected = (split(each, own) for each in _heads(layer.qkv(normed), spec.decoder, 3))
            for q, k, v, bias, (n, context, table) in zip(*projected, biases, pieces, strict=True):
                kv.write(index, table, context, k, v)
                outputs.append(_attend(q, *kv.read(index, table, context + n), bias, scale))
            x = self._add(x, layer.out(merge(outputs).flatten(1)))
            x = x if spec.pre_norm else layer.attention_norm(x)
            assert layer.cross is not None
            x = self._cross(x, layer.cross, index, sides, kv, scale)
            x = self._mlp(x, layer.mlp_norm, layer.up, layer.down)
        return x if stack.norm is None else stack.norm(x)

    def _cross(
        self, x: Tensor, cross: Cross[Linear, Norm], index: int, sides: Sides, kv: KVRegion, scale: float
    ) -> Tensor:
        """Attention of every request's tokens to all of its source."""
        (q,) = _heads(cross.q(cross.norm(x) if self.spec.pre_norm else x), self.spec.decoder, 1)
        sources = zip(split(q, sides.decoder), sides.source_tables, sides.source_lengths.tolist(), strict=True)
        outputs = [_attend(query, *kv.read(index, table, n), None, scale) for query, table, n in sources]
        x = self._add(x, cross.out(merge(outputs).flatten(1)))
        return x if self.spec.pre_norm else cross.norm(x)

    def _mlp(self, x: Tensor, norm: Norm, up: Linear, down: Linear) -> Tensor:
        y = mlp(norm(x) if self.spec.pre_norm else x, up, down, self.spec.activation, self.spec.gated)
        x = self._add(x, y)
        return x if self.spec.pre_norm else norm(x)

    def _add(self, x: Tensor, y: Tensor) -> Tensor:
        self.n_steps += 1
        return x + y

    def _embed(self, token_ids: Tensor, layout: Layout, stack: Stack[Linear, Norm, Embedding]) -> Tensor:
        """[n] -> [n, hidden], with absolute positions if there are such."""
        x = self.weights.embedding(token_ids) * self.spec.embedding_scale
        if stack.positions is not None:
            x = x + stack.positions(self._rows(layout.positions) + self.spec.position_offset)
        if self.spec.positions == "sinusoidal":
            x = x + sinusoids(layout.positions, self.spec.hidden_size).to(self.device, self.dtype)
        return x if stack.embedding_norm is None else stack.embedding_norm(x)

    def _distances(
        self, stack: Stack[Linear, Norm, Embedding], n: int, n_keys: int, context: int, both_ways: bool
    ) -> Tensor | None:
        """[heads, n, n_keys], added to the scores of queries context .. context + n - 1: of relative positions, and
        -inf for keys behind a query unless it looks both ways. None: there is nothing to add."""
        if stack.distances is None and (both_ways or n == 1):
            return None
        query, key = torch.arange(context, context + n)[:, None], torch.arange(n_keys)[None]
        distance = key - query
        if stack.distances is None:
            bias = torch.zeros(1, n, n_keys)
        else:
            rows = buckets(distance, self.spec.n_buckets, self.spec.max_distance, both_ways).to(self.device)
            bias = stack.distances(rows).float().permute(2, 0, 1)
        return bias if both_ways else bias.masked_fill((distance > 0).to(bias.device), -math.inf).to(self.device)

    def _head(self, x: Tensor, layout: Layout) -> Tensor:
        """Hidden states of the last rows [R, hidden] -> logits. Where a request has only its start, the token that the
        model puts out first is lifted above all others."""
        self.n_steps += 1
        logits = self.weights.head(x * self.spec.output_scale).float() + self._head_bias
        if self.spec.first is not None:
            begun = torch.from_numpy(layout.contexts + layout.lengths == 1).to(self.device)
            logits[begun, self.spec.first] = logits[begun].amax(1) + FORCED
        return logits

    def _rows(self, rows: Int32s) -> Tensor:
        return torch.from_numpy(rows).long().to(self.device)


def _heads(x: Tensor, stack: StackSpec, n: int) -> tuple[Tensor, ...]:
    """[rows, n * heads * head_dim] -> n of [rows, heads, head_dim]."""
    return x.view(len(x), n, stack.n_heads, stack.head_dim).unbind(1)


def _attend(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """One request: query [n, heads, D] over keys, values [T, heads, D] -> [n, heads, D]; in float32."""
    scores = torch.einsum("nhd,thd->hnt", query.float() * scale, keys.float())
    weights = (scores if bias is None else scores + bias).softmax(-1)
    return torch.einsum("hnt,thd->nhd", weights, values.float()).to(query.dtype)


def buckets(distance: Tensor, n_buckets: int, max_distance: int, both_ways: bool) -> Tensor:
    """Distances key - query [...] int64 -> rows of the table of relative positions (T5).

    Half of the rows are for keys behind the query, if it sees such. Of the others the first half is for one distance
    each, and the rest for ever longer runs of them, up to max_distance and beyond.
    """
    row = torch.zeros_like(distance)
    if both_ways:
        n_buckets //= 2
        row = (distance > 0).long() * n_buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    n_exact = n_buckets // 2
    far = torch.log(distance.clamp(min=1).float() / n_exact) / math.log(max_distance / n_exact) * (n_buckets - n_exact)
    return row + torch.where(distance < n_exact, distance, (n_exact + far.long()).clamp(max=n_buckets - 1))


def sinusoids(positions: Int32s, width: int) -> Tensor:
    """[n] -> [n, width] float32: sines of a position at falling frequencies, then its cosines."""
    angles = positions[:, None] / np.power(10_000, 2 * (np.arange(width) // 2) / width)
    return torch.from_numpy(np.concatenate((np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])), 1)).float()


def load_encoder_decoder(path: Path, dtype: str = "float32", device: torch.device | str = "cpu") -> EncoderDecoder:
    """Read a checkpoint folder. dtype: float32 or bfloat16.

    Raises ModelNotFound, CheckpointError (damaged or contradictory) or UnsupportedModel.
    """
    with EncoderDecoderFiles(path) as files:
        return EncoderDecoder(files.spec, files.load(TorchBuilder(files.spec.norm_eps, DTYPES[dtype], device)))
