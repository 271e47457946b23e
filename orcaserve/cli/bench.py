"""`orcaserve bench`: how fast this machine runs a model; and, with `serve`, how a server of any kind bears its load."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from statistics import median

from orcaserve.cli import bench_serve
from orcaserve.cli.adapter_options import adapters_config, add_adapter_arguments
from orcaserve.cli.options import add_model_arguments, engine_config
from orcaserve.core.errors import ConfigError

MODEL_FLAGS = {
    "model_flag": "--model",
    "dtype": "--dtype",
    "quantization": "--quantization",
    "kv_cache_dtype": "--kv-cache-dtype",
    "device": "--device",
    "max_model_len": "--max-model-len",
    "threads": "--threads",
}
KINDS = {
    "throughput": "prompt tokens/s and generated tokens/s, offline",
    "latency": "time to the first token and between tokens, offline",
    "startup": "seconds from the command to the first token, and memory beside weights and K/V",
    "serve": "load on a running server, this one or another: latencies, throughput, goodput",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure a model on this machine (random prompts of equal length, greedy, never ending early), or a server."
    )
    parser.epilog = (
        "examples:\n  orcaserve bench throughput --batch 1 8 32 --prompt 128 --gen 32 --json\n"
        "  orcaserve bench serve --rate 4 --target 'p50_normalized<=190ms'"
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="|".join(KINDS))
    for kind, text in KINDS.items():
        sub = kinds.add_parser(kind, help=text, description=text[0].upper() + text[1:] + ".")
        if kind == "serve":
            bench_serve.add_arguments(sub)
            continue
        sub.add_argument("--json", action="store_true", help="one JSON object a line")
        if kind == "startup":
            sub.add_argument("--repeat", type=_positive, default=3, metavar="N", help="starts (default: %(default)s)")
        else:
            sub.add_argument("--batch", type=_positive, nargs="+", default=[1, 8, 32], metavar="N",
                             help="requests at once, one row each (default: 1 8 32)")  # fmt: skip
            sub.add_argument("--prompt", type=_positive, default=128, metavar="N", help="tokens of every prompt")
            sub.add_argument("--gen", type=_positive, default=32, metavar="N",
                             help="tokens of every request: throughput counts them after the first one")  # fmt: skip
            sub.add_argument("--repeat", type=_positive, default=3, metavar="N", help="runs (default: %(default)s)")
            add_adapter_arguments(sub, "which the requests have in turn")
        add_model_arguments(sub, positional=False)


def run(args: argparse.Namespace) -> int:
    if args.kind == "serve":
        return bench_serve.run(args)
    rows = _startup(args) if args.kind == "startup" else _offline(args)
    if args.json:
        for row in rows:
            print(json.dumps(row), flush=True)
    else:
        _print_table(rows)
    return 0


def _offline(args: argparse.Namespace) -> Iterable[dict[str, object]]:
    """One row per batch size, as it is measured."""
    args.max_num_seqs = max(args.max_num_seqs, *args.batch)
    if args.n_slots is None and args.kv_cache_memory_bytes is None:
        pages = -(-(args.prompt + args.gen + 1) // 16)
        args.n_slots = max(args.batch) * pages * 16
    config = engine_config(args)
    config = replace(config, adapters=adapters_config(args, config.model.name))
    n_adapters = len(config.adapters.modules)
    from orcaserve.evaluation.latency import measure_latency
    from orcaserve.evaluation.measured_engine import MeasuredEngine
    from orcaserve.evaluation.sizes import how_held
    from orcaserve.evaluation.throughput import measure_throughput

    measure = measure_throughput if args.kind == "throughput" else measure_latency
    held = how_held(config)
    with MeasuredEngine(config) as engine:
        for batch in args.batch:
            row = measure(engine, held.weights, held.kv_cache_dtype, batch, args.prompt, args.gen, args.repeat)
            yield asdict(row) | ({"adapters": n_adapters} if n_adapters else {})


def _startup(args: argparse.Namespace) -> Iterable[dict[str, object]]:
    """One row: medians over the starts; the slowest of them beside."""
    for refused in ("n_slots", "kv_cache_memory_bytes"):
        if getattr(args, refused) is not None:
            raise ConfigError(f"--{refused.replace('_', '-')}", "is chosen by `bench startup` itself")
    config = engine_config(args)
    from orcaserve.evaluation.sizes import how_held, slot_bytes
    from orcaserve.evaluation.startup import N_SLOTS, measure_start

    flags = [
        text
        for name, flag in MODEL_FLAGS.items()
        if (value := getattr(args, name, None)) is not None
        for text in (flag, str(value))
    ]
    flags += ["--deterministic"] * args.deterministic
    starts = [measure_start(flags) for _ in range(args.repeat)]
    held = how_held(config)
    row: dict[str, object] = {"engine": "orcaserve", "form": held.weights, "kv_cache_dtype": held.kv_cache_dtype}
    for name in ("help", "generate", "ready", "serve"):
        times = [getattr(start, name) for start in starts]
        row |= {f"{name}_s": round(median(times), 3), f"{name}_s_most": round(max(times), 3)}
    kv = N_SLOTS * slot_bytes(held.spec, held.kv_cache_dtype)
    engine = median(start.engine_bytes for start in starts)
    endpoint = median(start.endpoint_bytes for start in starts)
    sizes = {"weights": held.weight_bytes, "kv": kv, "engine_peak": engine, "endpoint_peak": endpoint,
             "beside_weights_and_kv": engine + endpoint - held.weight_bytes - kv}  # fmt: skip
    yield row | {f"{name}_mb": round(size / 1e6, 1) for name, size in sizes.items()}


def _print_table(rows: Iterable[Mapping[str, object]]) -> None:
    """Columns of one width, the heading over them; a single row of many columns stands upright."""
    heading: list[str] = []
    for row in rows:
        if len(row) > 12:
            for name, value in row.items():
                print(f"{name:<24} {value}", flush=True)
            continue
        if not heading:
            heading = list(row)
            print("  ".join(heading))
        print("  ".join(f"{row[name]!s:>{len(name)}}" for name in heading), flush=True)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("takes an integer of 1 or more")
    return value
