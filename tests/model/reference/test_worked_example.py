"""The paper's Figure 5: four requests of one iteration, followed through split, attention and merge.

x1 at its 4th token, x2 at its 2nd, x3 with 2 and x4 with 3 input tokens: 7 tokens, with 3, 1, 0, 0 earlier keys.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orcaserve.model.reference.attention import Attention, split
from orcaserve.model.reference.layers import Linear

X1, X2, X3, X4 = [11, 12, 13, 14], [21, 22], [31, 32], [41, 42, 43]


class Recorder:
    """Attention that notes what goes in, per request, and what comes out."""

    def __init__(self) -> None:
        self.inner = Attention(scale=0.25)
        self.calls: list[dict[str, Any]] = []

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layer: int, layout: Any, kv: Any, window: int) -> Tensor:
        merged = self.inner(q, k, v, layer, layout, kv, window)
        keys = [
            kv.read(layer, layout.page_tables[r], int(layout.contexts[r]) + len(part))[0]
            for r, part in enumerate(split(k, layout))
        ]
        self.calls.append({
            "q": [part.shape for part in split(q, layout)],
            "earlier": layout.contexts.tolist(),
            "keys": [part.shape[0] for part in keys],
            "new keys": [torch.equal(part[-len(new) :], new) for part, new in zip(keys, split(k, layout), strict=True)],
            "parts": split(merged, layout),
            "merged": merged,
        })  # fmt: skip
        return merged


def test_seven_tokens_of_four_requests(tiny_llama: Any, reference: Any, runner: Any, tmp_path: Path) -> None:
    tiny_llama(num_key_value_heads=6).save_pretrained(tmp_path)
    loaded = reference(tmp_path)
    model, spec, run = loaded.model, loaded.spec, runner(loaded)
    run.step([(1, X1[:3])])
    run.step([(2, X2[:1])])

    model.attention = recorder = Recorder()
    widths: list[tuple[int, int]] = []
    qkv: Linear = model.weights.layers[0].qkv
    original = Linear.__call__

    def watch(self: Linear, x: Tensor) -> Tensor:
        out = original(self, x)
        if self is qkv:
            widths.append((x.shape[1], out.shape[1]))
        return out

    Linear.__call__ = watch  # type: ignore[method-assign]
    try:
        logits = run.step([(1, X1[3:]), (2, X2[1:]), (3, X3), (4, X4)])
    finally:
        Linear.__call__ = original  # type: ignore[method-assign]

    assert widths == [(spec.hidden_size, 3 * spec.hidden_size)]  # [7, H] in, [7, 3H] after QKV
    assert len(recorder.calls) == spec.n_layers
    for call in recorder.calls:
        assert call["q"] == [(n, 6, 16) for n in (1, 1, 2, 3)]  # split 1/1/2/3
        assert call["earlier"] == [3, 1, 0, 0]
        assert call["keys"] == [4, 2, 2, 3]
        assert all(call["new keys"])
        assert call["merged"].shape == (7, spec.hidden_size)  # merged to [7, H]
    assert logits.shape == (4, spec.vocab_size)  # one token per request comes back

    # Every request's part of layer 0's attention is what it has when it is alone.
    for r, tokens in enumerate([X1, X2, X3, X4]):
        model.attention = alone = Recorder()
        expected = run.step([(10 + r, tokens)])
        size = len(recorder.calls[0]["parts"][r])
        torch.testing.assert_close(recorder.calls[0]["parts"][r], alone.calls[0]["parts"][0][-size:])
        torch.testing.assert_close(logits[r], expected[0], rtol=1e-5, atol=1e-5)
