"""One draw per row of logits: temperature, then top_k, top_p, min_p, then a token by the row's own random number.

No result depends on the other rows: steps whose rounding may depend on a tensor's shape (sums, and exp at the end of a
vector register) are taken row by row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from orcaserve.core.sampling_params import SamplingParams

CANDIDATES = 256  # the best tokens that top_k, top_p and min_p look at first ...
WIDEN = 8  # ... and so many times more where they keep them all; a full sort of the vocabulary is the last resort
_MASK = 2**64 - 1


def draw(x: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> Tensor:
    """A token per row [R] of x [R, vocabulary] float32, overwritten, by a number in [0, 1) per row.

    x: logits less the row's best: however small the temperature, the best stays 0 and nothing overflows.
    """
    device = x.device
    x /= torch.tensor([p.temperature for p in params], device=device)[:, None]
    numbers = torch.tensor(uniforms, dtype=torch.float64, device=device)
    picks = torch.empty(len(params), dtype=torch.int64, device=device)
    cut = [row for row, p in enumerate(params) if p.top_k > 0 or p.top_p < 1 or p.min_p > 0]
    if cut:
        k = min(CANDIDATES, x.shape[1])
        picks[cut] = _draw_cut(x[cut], [params[row] for row in cut], numbers[cut], k)
    whole = sorted(set(range(len(params))).difference(cut))
    if whole:
        weights = x if not cut else x[whole]
        for row in weights:
            row.exp_()
        picks[whole] = _look_up(weights.cumsum(1, dtype=torch.float64), numbers[whole])
    return picks


def _draw_cut(x: Tensor, params: Sequence[SamplingParams], uniforms: Tensor, k: int) -> Tensor:
    """From those of each row's k best tokens that top_k, top_p and min_p keep, best first.

    Each of the three keeps a prefix of the sorted tokens. Where they keep all k, more might be kept; and where top_k is
    larger than k, the mass that top_p is a share of is not known yet: such rows are looked at again with a larger k.
    """
    n_tokens, device = x.shape[1], x.device
    values, ids = x.topk(k)
    weights = values.exp()  # relative to the best token's
    cumulative = weights.cumsum(1, dtype=torch.float64)
    top_k = torch.tensor([p.top_k if p.top_k > 0 else n_tokens for p in params], device=device).clamp(max=n_tokens)
    nucleus = torch.full_like(uniforms, torch.inf)  # top_p's share of what top_k leaves
    for row, p in enumerate(params):
        if p.top_p < 1:
            left = cumulative[row, p.top_k - 1] if 0 < p.top_k <= k else x[row].exp().sum(dtype=torch.float64)
            nucleus[row] = p.top_p * left
    keep = torch.arange(k, device=device) < top_k[:, None]
    keep &= cumulative - weights < nucleus[:, None]
    keep &= weights >= torch.tensor([p.min_p for p in params], device=device)[:, None]
    keep[:, 0] = True
    n_keep = keep.sum(1)
    kept = cumulative.minimum(cumulative.gather(1, n_keep[:, None] - 1))
    picks = ids.gather(1, _look_up(kept, uniforms)[:, None])[:, 0]
    unsure = (top_k > k) & ((n_keep == k) | (top_k < n_tokens))
    if unsure.any():
        again = [p for p, yes in zip(params, unsure.tolist(), strict=True) if yes]
        picks[unsure] = _draw_cut(x[unsure], again, uniforms[unsure], min(k * WIDEN, n_tokens))
    return picks


def _look_up(cumulative: Tensor, uniforms: Tensor) -> Tensor:
    """Row by row the first index whose cumulative weight exceeds the share `uniforms` of the last one.

    A token of weight 0 is never found: its cumulative weight is that of the one before it.
    """
    last = cumulative[:, -1:]
    target = (uniforms[:, None] * last).minimum(last.nextafter(torch.zeros_like(last)))
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) that depends on `seed` (64 bits) and `index` only: two rounds of splitmix64."""
    bits = _splitmix64(_splitmix64(seed & _MASK) ^ index)
    return (bits >> 11) * 2.0**-53


def _splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
