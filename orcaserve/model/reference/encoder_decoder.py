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

A part of a model (encoder_decoder/part.py) runs its own layers of that, from rows [N, hidden] to rows if the ends are
elsewhere; a shard of a layer adds up the Linears behind its attentions and its MLP over all shards.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from orcaserve.model.encoder_decoder.loader import EncoderDecoderFiles
from orcaserve.model.encoder_decoder.part import EncoderDecoderPart
from orcaserve.model.encoder_decoder.sides import Sides
from orcaserve.model.encoder_decoder.spec import EncoderDecoderSpec, StackSpec
from orcaserve.model.encoder_decoder.weights import Cross, EncoderDecoderWeights, Stack
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.reference.attention import merge, split
from orcaserve.model.reference.builder import DTYPES, TorchBuilder
from orcaserve.model.reference.kv_region import KVRegion
from orcaserve.model.reference.layers import Embedding, Linear, Norm, mlp
from orcaserve.model.reference.positions import buckets, sinusoids
from orcaserve.model.reference.transformer import AllReduce

FORCED = 1e4  # what lifts a token above, or pushes it below, all others: no bias that a request may set comes near


class EncoderDecoder:
    """A loaded model, or a part of one. Remembers nothing between calls but its weights.

    n_steps: parts of layers, and heads, that were run or begun; for any thread.
    """

    def __init__(
        self,
        spec: EncoderDecoderSpec,
        weights: EncoderDecoderWeights[Linear, Norm, Embedding],
        part: EncoderDecoderPart | None = None,
        all_reduce: AllReduce | None = None,
    ) -> None:
        """part: what of the model `weights` are, None = all of it. all_reduce: with more than one shard, sums a tensor
        [rows, hidden] in place over the shards; called twice per layer of the encoder, thrice per decoder's."""
        self.part = part = part or EncoderDecoderPart.whole(spec)
        if (part.n_shards > 1) != (all_reduce is not None):
            raise ValueError(f"{part.n_shards} shards, and {'no' if all_reduce is None else 'an'} all_reduce")
        self.spec = spec
        self.weights = weights
        some = (*weights.encoder.layers, *weights.decoder.layers)[0].out.weight
        self.device, self.dtype = some.device, some.dtype
        self.n_steps = 0
        self._own, self._all_reduce = part.own_spec, all_reduce
        bias = np.zeros(len(part.vocabulary), np.float32) if weights.head_bias is None else weights.head_bias.copy()
        bias[[token - part.vocabulary.start for token in spec.never if token in part.vocabulary]] -= FORCED
        self._head_bias = torch.from_numpy(bias).to(self.device)

    @torch.inference_mode()
    def forward(self, inputs: Tensor, layout: Layout, kv: KVRegion) -> Tensor:
        """Token ids [N] int64, laid out as `layout` says -> logits [R, vocabulary] float32, one row per request.

        Row r belongs to the last token of request r. The K/V of all N tokens is in `kv` afterwards: of source tokens
        for cross-attention, of the others for self-attention.
        A part without the first layers takes rows [N, hidden] in the place of ids; one without the last layers gives
        such rows; one of several shards, the logits of its own vocabulary.
        """
        sides = Sides.of(layout, kv.page_size)
        read = None
        if sides.sources is not None:
            read = inputs[self._rows(sides.source_rows)]
            read = self._embed(read, sides.sources, self.weights.encoder) if self.part.first else read
            read = self._read(read, sides.sources)
            self._keep(read, sides, kv, layout)
        x = inputs[self._rows(sides.decoder_rows)]
        x = self._embed(x, sides.decoder, self.weights.decoder) if self.part.first else x
        x = self._decode(x, sides, kv)
        if self.part.last:
            return self._head(x[self._rows(sides.decoder.last_rows)], sides.decoder)
        if read is None:
            return x
        rows = x.new_empty((layout.n_tokens, self.spec.hidden_size))
        rows[self._rows(sides.source_rows)], rows[self._rows(sides.decoder_rows)] = read, x
        return rows

    def _read(self, x: Tensor, own: Layout) -> Tensor:
        """Layers of the encoder, over the sources of all requests that begin [S, hidden]."""
        spec, stack = self.spec, self.weights.encoder
        scale = spec.score_scale(spec.encoder)
        biases = [self._distances(stack, n, n, 0, both_ways=True) for n in own.lengths.tolist()]
        for layer in stack.layers:
            normed = layer.attention_norm(x) if spec.pre_norm else x
            q, k, v = _heads(layer.qkv(normed), self._own.encoder, 3)
            parts = zip(split(q, own), split(k, own), split(v, own), biases, strict=True)
            x = self._add(x, layer.out(merge([_attend(*part, scale) for part in parts]).flatten(1)))
            x = x if spec.pre_norm else layer.attention_norm(x)
            x = self._mlp(x, layer.mlp_norm, layer.up, layer.down)
        return x if stack.norm is None else stack.norm(x)

    def _keep(self, x: Tensor, sides: Sides, kv: KVRegion, layout: Layout) -> None:
        """Keys and values of the encoder's outputs [S, hidden], for every layer of the decoder."""
        assert sides.sources is not None
        tables = [table for table, new in zip(sides.source_tables, layout.contexts == 0, strict=True) if new]
        for index, layer in enumerate(self.weights.decoder.layers):
            assert layer.cross is not None
            k, v = _heads(layer.cross.kv(x), self._own.decoder, 2)
            for table, key, value in zip(tables, split(k, sides.sources), split(v, sides.sources), strict=True):
                kv.write(index, table, 0, key, value)
            self.n_steps += 1

    def _decode(self, x: Tensor, sides: Sides, kv: KVRegion) -> Tensor:
        """Layers of the decoder, over the other tokens of all requests [N - S, hidden]."""
        spec, stack, own = self.spec, self.weights.decoder, sides.decoder
        scale = spec.score_scale(spec.decoder)
        pieces = list(zip(own.lengths.tolist(), own.contexts.tolist(), own.page_tables, strict=True))
        biases = [self._distances(stack, n, context + n, context, both_ways=False) for n, context, _ in pieces]
        for index, layer in enumerate(stack.layers):
            normed = layer.attention_norm(x) if spec.pre_norm else x
            outputs = []
            projected = (split(each, own) for each in _heads(layer.qkv(normed), self._own.decoder, 3))
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
        (q,) = _heads(cross.q(cross.norm(x) if self.spec.pre_norm else x), self._own.decoder, 1)
        sources = zip(split(q, sides.decoder), sides.source_tables, sides.source_lengths.tolist(), strict=True)
        outputs = [_attend(query, *kv.read(index, table, n), None, scale) for query, table, n in sources]
        x = self._add(x, cross.out(merge(outputs).flatten(1)))
        return x if self.spec.pre_norm else cross.norm(x)

    def _mlp(self, x: Tensor, norm: Norm, up: Linear, down: Linear) -> Tensor:
        y = mlp(norm(x) if self.spec.pre_norm else x, up, down, self.spec.activation, self.spec.gated)
        x = self._add(x, y)
        return x if self.spec.pre_norm else norm(x)

    def _add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y, with y of this shard."""
        if self._all_reduce is not None:
            self._all_reduce(y)
        self.n_steps += 1
        return x + y

    def _embed(self, token_ids: Tensor, layout: Layout, stack: Stack[Linear, Norm, Embedding]) -> Tensor:
        """[n] -> [n, hidden], with absolute positions if there are such."""
        assert self.weights.embedding is not None
        x: Tensor = self.weights.embedding(token_ids) * self.spec.embedding_scale
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
        """Hidden states of the last rows [R, hidden] -> logits of its own vocabulary. Where a request has only its
        start, the token that the model puts out first is above all others, whichever shard has it."""
        assert self.weights.head is not None
        self.n_steps += 1
        logits = self.weights.head(x * self.spec.output_scale).float() + self._head_bias
        first, own = self.spec.first, self.part.vocabulary
        if first is not None and first in own:
            begun = torch.from_numpy(layout.contexts + layout.lengths == 1).to(self.device)
            logits[begun, first - own.start] = FORCED
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


def load_encoder_decoder(path: Path, dtype: str = "float32", device: torch.device | str = "cpu") -> EncoderDecoder:
    """Read a checkpoint folder. dtype: float32 or bfloat16.

    Raises ModelNotFound, CheckpointError (damaged or contradictory) or UnsupportedModel.
    """
    with EncoderDecoderFiles(path) as files:
        return EncoderDecoder(files.spec, files.load(TorchBuilder(files.spec.norm_eps, DTYPES[dtype], device)))


def load_encoder_decoder_part(
    path: Path, part: EncoderDecoderPart, dtype: torch.dtype, device: torch.device, all_reduce: AllReduce | None
) -> EncoderDecoder:
    """The same of a part: reads its weights and no others. all_reduce: see EncoderDecoder. Raises as
    load_encoder_decoder."""
    with EncoderDecoderFiles(path) as files:
        weights = files.load(TorchBuilder(files.spec.norm_eps, dtype, device), part)
        return EncoderDecoder(files.spec, weights, part, all_reduce)
