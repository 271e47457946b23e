"""What does `--deterministic` cost?

Two engines of the same model in one process, one with the flag and one without, measured in turn: decoding at several
batch sizes, and the initiation of prompts, short ones together and a long one alone. A row gives the median of the
rounds' ratios, and the least and greatest of them, for this machine's own noise is larger than what is looked for.

On the CPU no arithmetic differs: kernels sum in one order whatever the flag says, and the flag refuses what could not
hold. So what is expected is 1, and what is measured is that nothing crept in.

    python benchmarks/deterministic_cost.py [--form float32] [--rounds 7] [--json]
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from throughputs import engine_config

from orcaserve import native
from orcaserve.config import SchedulerConfig
from orcaserve.evaluation.measured_engine import MeasuredEngine

FORMS = ("float32", "bfloat16", "int8", "int4")
WITHIN = 0.03  # of 1, what the median may be away from it


@dataclass(frozen=True)
class Work:
    name: str
    batch: int
    prompt: int
    gen: int


WORKS = (
    Work("decode", 1, 32, 48),
    Work("decode", 8, 32, 48),
    Work("decode", 32, 32, 48),
    Work("prompts", 32, 128, 0),
    Work("prompts", 1, 1024, 0),
)


@dataclass(frozen=True)
class Row:
    """tokens_s: with the flag, of the best round. ratio: with the flag by without, of the same round; the median."""

    work: str
    batch: int
    prompt: int
    tokens_s: float
    ratio: float
    least: float
    most: float


def rate(engine: MeasuredEngine, work: Work) -> float:
    """Tokens a second: of the prompts, or of what comes after each first token."""
    run = engine.run(engine.random_prompts(work.batch, work.prompt), 1 + work.gen)
    if work.gen == 0:
        return work.batch * work.prompt / run.seconds
    return work.batch * work.gen / run.decode_seconds


def compare(work: Work, plain: MeasuredEngine, deterministic: MeasuredEngine, rounds: int) -> Row:
    for engine in (plain, deterministic):
        rate(engine, work)  # memory is touched and code is warm afterwards
    rates, ratios = [], []
    for i in range(rounds):
        order = (plain, deterministic) if i % 2 else (deterministic, plain)
        measured = {id(engine): rate(engine, work) for engine in order}
        rates.append(measured[id(deterministic)])
        ratios.append(measured[id(deterministic)] / measured[id(plain)])
    middle, least, most = (round(f(ratios), 3) for f in (median, min, max))
    return Row(work.name, work.batch, work.prompt, round(max(rates), 1), middle, least, most)


def measure(form: str, model: str | None, rounds: int) -> list[Row]:
    kv = form if form in ("float32", "bfloat16") else "int8"
    most = max(work.batch * (work.prompt + work.gen + 17) for work in WORKS)
    config = replace(engine_config(model, form, kv, 1, most), scheduler=SchedulerConfig())
    with MeasuredEngine(config) as plain, MeasuredEngine(replace(config, deterministic=True)) as deterministic:
        return [compare(work, plain, deterministic, rounds) for work in WORKS]


def print_table(form: str, rows: Sequence[Row]) -> None:
    print(f"{form}, {native.isa()}\n")
    print("| work | batch | prompt | tokens/s with it | with / without, median | least | greatest |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(str(value) for value in asdict(row).values())} |")


def main() -> int:
    parser = argparse.ArgumentParser(description="Throughput with --deterministic against without, in one run.")
    parser.add_argument("--form", choices=FORMS, default="float32", help="of the weights (default: %(default)s)")
    parser.add_argument("--model", help="default: the default model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    args = parser.parse_args()
    rows = measure(args.form, args.model, args.rounds)
    within = all(abs(row.ratio - 1) <= WITHIN for row in rows)
    if args.json:
        facts = {"python": platform.python_version(), "isa": native.isa(), "form": args.form, "rounds": args.rounds}
        print(json.dumps({**facts, "rows": [asdict(row) for row in rows], "within": within}))
    else:
        print_table(args.form, rows)
        print(f"\nevery median within {WITHIN:.0%} of 1: {'yes' if within else 'NO'}")
    return 0 if within else 1


if __name__ == "__main__":
    raise SystemExit(main())
