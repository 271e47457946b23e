"""`orcaserve simulate`: a workload through the scheduler that serves, in virtual time."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from orcaserve.cli.options import add_bound_arguments, scheduler_config
from orcaserve.cli.planned import add_planned_arguments, planned_engine
from orcaserve.cli.workload_options import add_workload_arguments, workload
from orcaserve.config import FIRST_ITERATIONS, POLICY_NAMES
from orcaserve.core.errors import ConfigError

if TYPE_CHECKING:
    from orcaserve.simulation.outcome import Quantiles, Summary
    from orcaserve.simulation.pipeline import Pipeline

DRAWN = 400  # blocks of each worker that a timeline shows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run a workload through the scheduler and the policies that serve, in virtual time: what an iteration takes "
        "comes from a data sheet or from a profile of this machine."
    )
    parser.epilog = (
        "examples:\n"
        "  orcaserve simulate 175b --rate 6 --max-num-seqs 32\n"
        "  orcaserve simulate 175b --rate 0.2 --scheduling-policy request-level --max-num-seqs 8 --microbatch-size 8\n"
        "  orcaserve simulate default --workload azure-conv --rate 3 --n 2000\n"
        "  orcaserve simulate path/to/model --hardware h100 --rate 40"
    )
    add_planned_arguments(parser, default="175b")
    add_workload_arguments(parser, n=1000)
    group = parser.add_argument_group("scheduling")
    group.add_argument("--max-num-seqs", "--max-batch-size", dest="max_num_seqs", type=int, default=32, metavar="N",
                       help="max_bs: most requests of a batch (default: %(default)s)")  # fmt: skip
    group.add_argument("--n-slots", type=int, metavar="N", help="K/V slots (default: all that fit)")
    group.add_argument("--scheduling-policy", choices=POLICY_NAMES, default=POLICY_NAMES[0],
                       help="as for `serve` (default: %(default)s)")  # fmt: skip
    group.add_argument("--microbatch-size", type=int, metavar="N", help="as for `serve`")
    group.add_argument("--first-iteration", choices=FIRST_ITERATIONS, help="as for `serve`")
    add_bound_arguments(group)
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    group.add_argument("--timeline", type=Path, metavar="FILE.svg",
                       help=f"draw what each worker did when, up to {DRAWN} batches")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    # The same checks as `serve` makes of the same flags.
    settings = scheduler_config(args)
    from orcaserve.simulation.pipeline import Pipeline
    from orcaserve.simulation.setting import Setting

    engine = planned_engine(args)
    longest = args.max_model_len or engine.context_length
    n_slots = engine.n_slots if args.n_slots is None else args.n_slots
    if args.n_slots is not None and not engine.page_size <= args.n_slots:
        raise ConfigError("--n-slots", f"must be at least one page, {engine.page_size}")
    if n_slots < engine.page_size:
        raise ConfigError("MODEL", f"{engine.model} does not fit {engine.where}; `orcaserve plan` tells more")
    if args.n_slots is not None and args.n_slots > engine.n_slots:
        raise ConfigError("--n-slots", f"{engine.where} has room for {engine.n_slots} slots, not {args.n_slots}")
    setting = Setting(
        engine.cost, n_slots, settings.max_bs, longest, engine.page_size, settings.policy,
        settings.microbatch_size, settings.first_iteration != "whole", settings.fairness,
        settings.max_num_batched_tokens, settings.target_itl,
    )  # fmt: skip
    setting.check()
    arrivals = workload(args).arrivals(args.rate, args.seed)
    pipeline = Pipeline(engine.cost, record=args.timeline is not None)
    started = time.perf_counter()
    outcome = setting.run(arrivals, _progress(len(arrivals)), pipeline)
    seconds = time.perf_counter() - started
    summary = outcome.summary()
    if args.json:
        facts = {
            "model": engine.model, "hardware": engine.where, "policy": settings.policy, "max_bs": settings.max_bs,
            "n_slots": n_slots, "workload": args.workload, "offered_req_s": args.rate, "seed": args.seed,
            "simulated_in_s": round(seconds, 3),
        }  # fmt: skip
        print(json.dumps(facts | summary.as_json()))
    else:
        print(f"{engine.model} on {engine.where}: {settings.policy}, max_bs {settings.max_bs}, {n_slots:,} slots")
        print(_text(summary, seconds))
    if args.timeline is not None:
        _draw(pipeline, outcome.seconds, args.timeline)
    return 0


def _text(summary: Summary, seconds: float) -> str:
    def row(name: str, q: Quantiles) -> str:
        return f"{name:<28}{q.p50:>12,.1f}{q.p90:>12,.1f}{q.p99:>12,.1f}"

    refused = f", {summary.n_refused} refused" if summary.n_refused else ""
    speed = summary.n_iterations / seconds if seconds else 0.0
    return "\n".join(
        [
            f"{'requests':<28}{summary.n_requests:>12,}{refused}",
            f"{'requests/s':<28}{summary.throughput:>12,.3f}",
            f"{'generated tokens/s':<28}{summary.tokens_per_second:>12,.1f}",
            f"{'workers busy':<28}{summary.utilisation:>12.1%}",
            f"{'ms':<28}{'median':>12}{'p90':>12}{'p99':>12}",
            row("latency a token", summary.normalised),
            row("first token", summary.ttft),
            row("between tokens", summary.itl),
            f"{summary.n_iterations:,} iterations, {summary.seconds:,.1f} s, simulated in {seconds:.1f} s "
            f"({speed:,.0f} iterations/s)",
        ]
    )


def _progress(n: int) -> _Progress | None:
    return _Progress(n) if sys.stderr.isatty() else None


class _Progress:
    """How far it is, once a second, on a line of a terminal that is wiped in the end by what follows."""

    def __init__(self, n_requests: int) -> None:
        self._n_requests = n_requests
        self._told = time.monotonic()

    def __call__(self, n_iterations: int, n_ended: int) -> None:
        now = time.monotonic()
        if now - self._told >= 1:
            self._told = now
            text = f"{n_ended:,} of {self._n_requests:,} requests, {n_iterations:,} iterations"
            print(f"\r\x1b[K{text}\r", end="", file=sys.stderr, flush=True)


def _draw(pipeline: Pipeline, seconds: float, path: Path) -> None:
    from orcaserve.engine.timeline_picture import Block, draw

    assert pipeline.blocks is not None
    n_workers = len(pipeline.busy)
    workers = [f"s{worker}" for worker in range(n_workers)]
    blocks = [
        Block(workers[b.worker], b.batch.iteration, round(b.start * 1e9), round(b.end * 1e9), len(b.batch.entries),
              b.batch.n_tokens)
        for b in pipeline.blocks[: DRAWN * n_workers]
    ]  # fmt: skip
    idle = {worker: 1 - one / seconds for worker, one in zip(workers, pipeline.busy, strict=True)} if seconds else {}
    path.write_text(draw(workers, blocks, idle))
