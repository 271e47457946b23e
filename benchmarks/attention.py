"""What does attention cost in an iteration, with keys and values in 32, 16 and 8 bits?

    python benchmarks/attention.py [--threads N] [--repeats N] [--out FILE]

Shapes are the default model's: 30 layers, 9 query heads and 3 K/V heads of 64. Every layer has its own K/V, so the
figures include reading it from memory as in a real iteration. Milliseconds per iteration, best of the repetitions; each
thread keeps to a core of its own.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import report
from sampling import pinned_team

from orcaserve.config import PAGE_SIZE
from orcaserve.model.kv_manager import KVManager
from orcaserve.model.spec import ModelSpec
from orcaserve.native import Team, isa
from orcaserve.native.attention import Layout, attend
from orcaserve.native.kv_region import STORAGES, KVRegion

LAYERS, HEADS, KV_HEADS, DIM = 30, 9, 3, 64
Entries = list[tuple[int, int]]  # (tokens of the iteration, tokens before it) per request

CASES: dict[str, Entries] = {
    "decode 1, context 144": [(1, 144)],
    "decode 8, context 144": [(1, 144)] * 8,
    "decode 32, context 144": [(1, 144)] * 32,
    "decode 128, context 144": [(1, 144)] * 128,
    "decode 1, context 1024": [(1, 1024)],
    "decode 32, context 1024": [(1, 1024)] * 32,
    "prompt 128": [(128, 0)],
    "prompt 512": [(512, 0)],
    "prompt 2048": [(2048, 0)],
    "mixed: 31 at 144, prompt 128": [(1, 144)] * 31 + [(128, 0)],
}
SPEC = ModelSpec(
    vocab_size=1, context_length=4096, hidden_size=HEADS * DIM, n_layers=LAYERS, n_heads=HEADS, n_kv_heads=KV_HEADS,
    head_dim=DIM, intermediate_size=1, norm="rms", norm_eps=1e-5, activation="silu", gated=True, tied=True, rope=None,
)  # fmt: skip


def milliseconds(entries: Entries, storage: str, team: Team, repeats: int) -> float:
    """The best of `repeats` iterations, all layers. The tokens before are appended by the kernels themselves."""
    rng = np.random.default_rng(1)
    pages = KVManager(sum(-(-(n + context) // PAGE_SIZE) * PAGE_SIZE for n, context in entries), PAGE_SIZE)
    kv = KVRegion(SPEC, pages.n_pages, PAGE_SIZE, storage)
    width = (HEADS + 2 * KV_HEADS) * DIM

    def run(pieces: list[tuple[int, int]]) -> float:
        laid = pages.lay_out(pieces)
        layout = Layout(laid.starts, laid.contexts, laid.page_tables)
        qkv = rng.standard_normal((int(laid.starts[-1]), width)).astype(np.float32)
        begin = time.perf_counter()
        attend(qkv, kv, layout, team, n_layers=LAYERS)
        best = time.perf_counter() - begin
        for _ in range(repeats - 1):
            begin = time.perf_counter()
            attend(qkv, kv, layout, team, n_layers=LAYERS)
            best = min(best, time.perf_counter() - begin)
        return best * 1e3

    before = [(request, context) for request, (_, context) in enumerate(entries) if context]
    if before:
        run(before)
    return run([(request, n) for request, (n, _) in enumerate(entries)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", "-t", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", metavar="FILE", help="write the table here as well")
    args = parser.parse_args()
    team = pinned_team(args.threads)
    rows = []
    for name, entries in CASES.items():
        figures = [milliseconds(entries, storage, team, args.repeats) for storage in STORAGES]
        rows.append([name, *(f"{figure:.2f}" for figure in figures)])
        print(*rows[-1], sep="  ", flush=True)
    text = report.heading("Attention", __doc__)
    text += (
        f"{args.threads} threads, {isa()}, milliseconds per iteration of {LAYERS} layers, best of {args.repeats}\n\n"
    )
    report.write(text + report.table(["K/V", *STORAGES], rows), args.out)


if __name__ == "__main__":
    main()
