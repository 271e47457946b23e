"""The skeleton's operators on flat [tokens, width] tensors. Each treats every row on its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from orcaserve.model.spec import ACTIVATIONS, Activation, ModelSpec
from orcaserve.model.weights import Expert

FUNCTIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class Linear:
    """y = x W^T + b, with W [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Embedding:
    """Rows of a table [rows, width] by number."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, ids: Tensor) -> Tensor:
        """[n] int64 -> [n, width]."""
        return F.embedding(ids, self.weight)


class Norm:
    """RMSNorm (no bias) or LayerNorm (bias) over the last dimension."""

    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        self.weight, self.bias, self.eps = weight, bias, eps

    def __call__(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def mlp(x: Tensor, up: Linear, down: Linear, activation: str, gated: bool) -> Tensor:
    """down(act(up x)), or with a gate down(act(gate x) * up x), where gate and up are one matrix."""
    act = FUNCTIONS[ACTIVATIONS[activation]]
    if not gated:
        return down(act(up(x)))
    gate, value = up(x).chunk(2, dim=1)
    return down(act(gate) * value)


def experts(x: Tensor, router: Linear, mlps: Sequence[Expert[Linear]], spec: ModelSpec) -> Tensor:
    """Each row's chosen MLPs, weighted: the rows of all requests that chose an expert go through it together.

    x [N, hidden]. What experts give is added in the order of their numbers, so that a row's sum does not depend on the
    rows beside it.
    """
    shares, chosen = router(x).float().softmax(-1).topk(spec.n_chosen)
    if spec.shares_of_chosen:
        shares = shares / shares.sum(-1, keepdim=True)
    out = torch.zeros_like(x)
    for expert in torch.unique(chosen).tolist():
        rows, place = (chosen == expert).nonzero(as_tuple=True)
        own = mlp(x[rows], mlps[expert].up, mlps[expert].down, spec.activation, spec.gated)
        out[rows] += own * shares[rows, place, None].to(x.dtype)
    return out


def rotate(x: Tensor, angles: Tensor, amplitude: float) -> Tensor:
    """Turn the first dimensions of x [N, heads, head_dim] by angles [N, pairs]: i pairs with i + number of pairs."""
    pairs = angles.shape[1]
    cos, sin = ((f(angles) * amplitude).to(x.dtype)[:, None] for f in (torch.cos, torch.sin))
    first, second, rest = torch.split(x, [pairs, pairs, x.shape[2] - 2 * pairs], dim=2)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=2)
