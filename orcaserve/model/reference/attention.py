"""Attention of all requests of an iteration, each over its own keys and values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from orcaserve.model.layout import Layout
from orcaserve.model.reference.kv_region import KVRegion


class Attention:
    """Split, attend request by request, merge: the one operator that knows borders between requests.

    scale: factor of the scores. softcap, alibi: see ModelSpec; alibi of the heads that are here.
    """

    def __init__(self, scale: float, softcap: float = 0.0, alibi: Sequence[float] = ()) -> None:
        self._scale, self._softcap, self._alibi = scale, softcap, alibi

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, layout: Layout, kv: KVRegion, window: int = 0
    ) -> Tensor:
        """q [N, heads, D], k and v [N, kv heads, D] -> [N, heads * D] of q's dtype.

        Stores k and v as the newest tokens of their requests in `kv`, then every token attends to the tokens of its
        request up to itself, or with a window to so many of them. Query head h reads K/V head h // (heads / kv heads).
        """
        outputs = []
        for r, (query, key, value) in enumerate(zip(*(split(x, layout) for x in (q, k, v)), strict=True)):
            context, table = int(layout.contexts[r]), layout.page_tables[r]
            kv.write(layer, table, context, key, value)
            start = max(context - window + 1, 0) if window else 0  # before it are pages that the request may have left
            keys, values = kv.read(layer, table, context + len(key), start)
            outputs.append(self._attend(query, keys, values, context - start, window))
        return merge(outputs).flatten(1)

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, context: int, window: int) -> Tensor:
        """One request: query [n, heads, D] over keys, values [context + n, kv heads, D] -> [n, heads, D]; float32.

        context: of the tokens whose keys these are, how many come before the queries.
        """
        group = query.shape[1] // keys.shape[1]
        keys = keys.float().repeat_interleave(group, dim=1)
        values = values.float().repeat_interleave(group, dim=1)
        scores = torch.einsum("nhd,thd->hnt", query.float() * self._scale, keys)
        if self._softcap:
            scores = self._softcap * torch.tanh(scores / self._softcap)
        back = torch.arange(len(query), device=query.device)[:, None] + context
        back = back - torch.arange(len(keys), device=query.device)  # [n, t]: tokens from the query back to the key
        if self._alibi:
            scores = scores - torch.tensor(self._alibi, device=query.device)[:, None, None] * back
        seen = (back >= 0) & (back < window) if window else back >= 0
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        return torch.einsum("hnt,thd->nhd", weights, values).to(query.dtype)


def split(x: Tensor, layout: Layout) -> Sequence[Tensor]:
    """[N, ...] -> one [L_r, ...] view per request."""
    return torch.split(x, layout.lengths.tolist())


def merge(parts: Sequence[Tensor]) -> Tensor:
    """One [L_r, ...] per request -> [N, ...]: the inverse of split."""
    return torch.cat(list(parts))
