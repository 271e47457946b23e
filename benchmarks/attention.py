"""What does attention cost in an iteration, and what does the native call gain over PyTorch?

    python benchmarks/attention.py [--threads N] [--kv-dtype float32|bfloat16] [--repeats N]

Shapes are the default model's: 30 layers, 9 query heads and 3 K/V heads of 64. Every layer has its own K/V, so the
figures include reading it from memory as in a real iteration. `native` and `reference` are our two paths: append and
attend. `sdpa` calls torch's scaled_dot_product_attention once per request over K/V that lies ready and contiguous,
without the append: what a loop over requests costs at its best. Milliseconds per iteration, best of the repetitions.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from orcaserve import native
from orcaserve.model.attention import Attention, NativeAttention, ReferenceAttention
from orcaserve.model.kv_manager import KVManager
from orcaserve.model.layout import Layout

LAYERS, HEADS, KV_HEADS, DIM = 30, 9, 3, 64
Entries = list[tuple[int, int]]  # (tokens of the iteration, tokens before it) per request

CASES: dict[str, Entries] = {
    "decode 1, context 144": [(1, 144)],
    "decode 8, context 144": [(1, 144)] * 8,
    "decode 32, context 144": [(1, 144)] * 32,
    "decode 1, context 1024": [(1, 1024)],
    "decode 8, context 1024": [(1, 1024)] * 8,
    "decode 32, context 1024": [(1, 1024)] * 32,
    "prompt 128": [(128, 0)],
    "prompt 512": [(512, 0)],
    "prompt 2048": [(2048, 0)],
    "mixed: 31 at 144, prompt 128": [(1, 144)] * 31 + [(128, 0)],
}


def build(entries: Entries, dtype: torch.dtype) -> tuple[KVManager, Layout]:
    """K/V filled with random numbers, and the layout of an iteration over it."""
    n_slots = sum(-(-(n + context) // 16) * 16 for n, context in entries)
    kv = KVManager(LAYERS, KV_HEADS, DIM, n_slots, dtype=dtype)
    for region in (*kv.keys, *kv.values):
        region.normal_()
    for request, (_, context) in enumerate(entries):
        if context:
            kv.extend(request, context)
    return kv, kv.lay_out([(request, n) for request, (n, _) in enumerate(entries)])


def run_ours(attention: Attention, qkv: tuple[Tensor, ...], layout: Layout, kv: KVManager) -> None:
    for layer in range(LAYERS):
        attention(*qkv, layer, layout, kv)


def run_sdpa(queries: list[Tensor], keys_values: list[list[tuple[Tensor, Tensor]]], causal: bool) -> None:
    for layer in keys_values:
        outputs = [
            scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
            for q, (k, v) in zip(queries, layer, strict=True)
        ]
        torch.cat([out[0].transpose(0, 1) for out in outputs])


def best_ms(call: Callable[[], None], repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def measure(entries: Entries, dtype: torch.dtype, repeats: int) -> tuple[float, float, float]:
    """Milliseconds of native, reference and sdpa."""
    kv, layout = build(entries, dtype)
    fused = torch.randn(layout.n_tokens, (HEADS + 2 * KV_HEADS) * DIM)
    parts = fused.split([HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM], dim=1)
    qkv = tuple(part.unflatten(1, (-1, DIM)) for part in parts)
    fast = best_ms(lambda: run_ours(NativeAttention(), qkv, layout, kv), repeats)
    slow = best_ms(lambda: run_ours(ReferenceAttention(), qkv, layout, kv), max(1, repeats // 5))
    totals = [n + context for n, context in entries]
    gathered = [
        [
            tuple(x.float().transpose(0, 1)[None].contiguous() for x in kv.read(layer, layout.page_tables[r], total))
            for r, total in enumerate(totals)
        ]
        for layer in range(LAYERS)
    ]
    queries = [q.transpose(0, 1)[None].contiguous() for q in layout.split(qkv[0])]
    # A decoding token sees every key; a prompt (context 0) sees the lower triangle.
    mixed = len({n > 1 for n, _ in entries}) > 1
    causal = entries[0][0] > 1
    loop = float("nan") if mixed else best_ms(lambda: run_sdpa(queries, gathered, causal), repeats)
    return fast, slow, loop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--kv-dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(f"{args.threads} threads, {native.isa()}, K/V {args.kv_dtype}, ms per iteration of {LAYERS} layers")
    print(f"{'':30}{'native':>9}{'reference':>11}{'sdpa':>9}{'per layer':>11}")
    for name, entries in CASES.items():
        fast, slow, loop = measure(entries, getattr(torch, args.kv_dtype), args.repeats)
        print(f"{name:30}{fast:9.2f}{slow:11.1f}{loop:9.2f}{fast / LAYERS * 1e3:8.0f} us", flush=True)


if __name__ == "__main__":
    main()
