"""The reference's attention against PyTorch's own, request by request; split and merge as inverses."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orcaserve.model.kv_manager import KVManager
from orcaserve.model.reference.attention import Attention, merge, split
from orcaserve.model.reference.kv_region import KVRegion
from orcaserve.model.spec import ModelSpec


def spec(n_heads: int, n_kv_heads: int, dim: int) -> ModelSpec:
    return ModelSpec(16, 64, 8, 2, n_heads, n_kv_heads, dim, 8, "rms", 1e-5, "silu", True, True, None)


PIECES = st.lists(st.tuples(st.integers(1, 20), st.sampled_from([0, 1, 17, 40])), min_size=1, max_size=5)


@settings(max_examples=40)
@given(PIECES, st.sampled_from([(9, 3), (4, 4), (8, 1)]), st.sampled_from([1, 5, 16]), st.integers(0, 99))
def test_every_request_attends_to_its_own_text(
    pieces: list[tuple[int, int]], heads: tuple[int, int], page_size: int, seed: int
) -> None:
    generator, dim, layer = torch.Generator().manual_seed(seed), 8, 1
    kv = KVManager(400, page_size)
    region = KVRegion(spec(*heads, dim), kv.n_pages, page_size)
    for storage in (region.keys, region.values):
        storage.fill_(float("nan"))  # nothing may depend on slots that nobody has written
    attention = Attention(scale=0.3)
    texts = [[torch.randn(c + n, h, dim, generator=generator) for h in (heads[0], heads[1], heads[1])]
             for n, c in pieces]  # fmt: skip
    for r, (_, context) in enumerate(pieces):
        if context:
            attention(*(x[:context] for x in texts[r]), layer, kv.lay_out([(r, context)]), region)
    layout = kv.lay_out([(r, n) for r, (n, _) in enumerate(pieces)])
    flat = (torch.cat([x[i][c:] for x, (_, c) in zip(texts, pieces, strict=True)]) for i in range(3))
    parts = split(attention(*flat, layer, layout, region), layout)
    for (q, k, v), (_, context), part in zip(texts, pieces, parts, strict=True):
        expected = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(0, 1) for x in (q, k, v)), is_causal=True, scale=0.3, enable_gqa=True
        )
        torch.testing.assert_close(part, expected.transpose(0, 1)[context:].flatten(1), rtol=1e-5, atol=1e-5)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_split_and_merge_are_inverses(lengths: list[int]) -> None:
    layout = KVManager(400, 4).lay_out(list(enumerate(lengths)))
    x = torch.randn(layout.n_tokens, 2, 3)
    parts = split(x, layout)
    assert [part.shape[0] for part in parts] == lengths
    assert torch.equal(merge(parts), x)


def test_bfloat16_storage_rounds_what_is_stored_and_nothing_else() -> None:
    kv = KVManager(64, 4)
    region = KVRegion(spec(2, 2, 8), kv.n_pages, 4, "bfloat16")
    q, k, v = torch.randn(3, 6, 2, 8, generator=torch.Generator().manual_seed(1)).unbind(0)
    layout = kv.lay_out([(0, 6)])
    got = Attention(1.0)(q, k, v, 0, layout, region)
    keys, values = region.read(0, layout.page_tables[0], 6)
    assert torch.equal(keys, k.bfloat16()) and torch.equal(values, v.bfloat16())
    plain = KVRegion(spec(2, 2, 8), kv.n_pages, 4)
    expected = Attention(1.0)(q, k.bfloat16().float(), v.bfloat16().float(), 0, layout, plain)
    torch.testing.assert_close(got, expected)
