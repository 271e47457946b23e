"""What do adapters cost, many of them in one batch?

One engine with random adapters of all Linears. In turns, several times over: the batch without adapters, the batch
with its requests spread over them in turn, and with one adapter for all or for a single one. Decoding only, as tokens a
second; a row gives the median of the rounds' ratios to the same round without, and the least and greatest.

    python benchmarks/lora.py [--adapters 8] [--batch 32] [--rank 16] [--prompt 32] [--gen 96] [--rounds 7]
                              [--form int8] [--model MODEL] [--out FILE] [--lines FILE]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import report
from safetensors.numpy import save_file
from throughputs import engine_config

from orcaserve.checkpoint.locate import locate_model
from orcaserve.config import AdaptersConfig
from orcaserve.core import AdapterSource
from orcaserve.evaluation.measured_engine import MeasuredEngine
from orcaserve.model.adapter import names_of
from orcaserve.model.loader import ModelFiles

GOAL = 0.85  # of the throughput without adapters


@dataclass(frozen=True)
class Row:
    """ratio: to the throughput of the same round without adapters."""

    work: str
    tokens_s: float
    ratio: float
    least: float
    most: float


def write_adapters(model: Path, folder: Path, n: int, rank: int) -> list[AdapterSource]:
    """Random ones, of all Linears of all layers."""
    names = names_of(model)
    with ModelFiles(model) as files:
        spec = files.spec
    hidden, wide = spec.hidden_size, spec.intermediate_size
    if len(names.qkv) != 3:
        raise SystemExit("give a model whose queries, keys and values are matrices of their own")
    shapes = dict(zip(names.qkv, [(spec.q_size, hidden), *[(spec.kv_size, hidden)] * 2], strict=True))
    shapes |= {names.out: (hidden, spec.q_size), names.down: (hidden, wide)}
    shapes |= dict.fromkeys(names.up, (wide, hidden))
    random, sources = np.random.default_rng(0), []
    for number in range(1, n + 1):
        own = folder / str(number)
        own.mkdir()
        tensors = {}
        for layer in range(spec.n_layers):
            for name, (n_out, n_in) in shapes.items():
                start = f"base_model.model.{names.prefix}{names.layer.format(i=layer)}{name}"
                for which, shape in (("A", (rank, n_in)), ("B", (n_out, rank))):
                    numbers = random.standard_normal(shape, np.float32) * 0.02
                    tensors[f"{start}.lora_{which}.weight"] = numbers.astype(np.float32)
        save_file(tensors, own / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "fan_in_fan_out": names.transposed}
        (own / "adapter_config.json").write_text(json.dumps(config))
        sources.append(AdapterSource(number, str(number), own))
    return sources


def rate(engine: MeasuredEngine, adapters: Sequence[int], prompt: int, gen: int) -> float:
    """Tokens a second after each first one."""
    run = engine.run(engine.random_prompts(len(adapters), prompt), 1 + gen, adapters=adapters)
    return len(adapters) * gen / run.decode_seconds


def measure(args: argparse.Namespace) -> list[Row]:
    kv = args.form if args.form in ("float32", "bfloat16") else "int8"
    config = engine_config(args.model, args.form, kv, args.batch, args.batch * (args.prompt + args.gen + 17))
    works = {
        "without": [0] * args.batch,
        f"{args.adapters} adapters": [1 + i % args.adapters for i in range(args.batch)],
        "one adapter": [1] * args.batch,
        "one request of all has one": [1] + [0] * (args.batch - 1),
    }
    with tempfile.TemporaryDirectory() as folder:
        sources = write_adapters(locate_model(args.model), Path(folder), args.adapters, args.rank)
        adapters = AdaptersConfig(tuple(sources), max_loras=max(args.adapters, 1), max_rank=max(args.rank, 1))
        with MeasuredEngine(replace(config, adapters=adapters)) as engine:
            rates: dict[str, list[float]] = {name: [] for name in works}
            for i in range(args.rounds + 1):  # the first one warms up
                for name in list(works) if i % 2 else list(works)[::-1]:
                    measured = rate(engine, works[name], args.prompt, args.gen)
                    if i:
                        rates[name].append(measured)
    rows = []
    for name, own in rates.items():
        ratios = [each / base for each, base in zip(own, rates["without"], strict=True)]
        middle, least, most = (round(f(ratios), 3) for f in (median, min, max))
        rows.append(Row(name, round(median(own), 1), middle, least, most))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="Throughput with adapters against without, in one run.")
    parser.add_argument("--adapters", type=int, default=8, metavar="N")
    parser.add_argument("--batch", type=int, default=32, metavar="N", help="requests at once")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=32, metavar="N", help="prompt tokens")
    parser.add_argument("--gen", type=int, default=96, metavar="N", help="tokens after the first one")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--form", choices=("float32", "bfloat16", "int8", "int4"), default="int8")
    parser.add_argument("--model", help="default: the default model")
    parser.add_argument("--out", metavar="FILE", help="write the table there too")
    report.add_line_argument(parser)
    args = parser.parse_args()
    rows = measure(args)
    columns = ("", "tokens/s, median", "to without, median", "least", "greatest")
    text = report.heading("Adapters", __doc__)
    text += f"{args.form} weights, {args.batch} requests, rank {args.rank}, all Linears.\n\n"
    text += report.table(columns, [(r.work, f"{r.tokens_s:,.0f}", r.ratio, r.least, r.most) for r in rows])
    report.write(text, args.out)
    many = rows[1]
    passed = many.ratio >= GOAL
    what = f"{args.adapters} adapters in a batch of {args.batch}"
    ours = f"{many.tokens_s:,.0f} tokens/s"
    line = report.Line(what, f"{GOAL:.0%}", ours, "without", f"{many.ratio:.0%}", passed)
    report.write_lines([line], args.lines)
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
