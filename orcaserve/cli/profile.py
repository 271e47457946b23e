"""`orcaserve profile`: what iterations cost on this machine with a model, measured, fitted and stored."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from orcaserve.cli.options import add_model_arguments, engine_config, print_notes
from orcaserve.cli.profile_file import default_profile
from orcaserve.core.errors import ConfigError
from orcaserve.version import __version__

if TYPE_CHECKING:
    from orcaserve.evaluation.profiling import Cell

SECONDS, QUICK_SECONDS = 5.0, 1.0  # of each cell
# Some iterations, as (input tokens, earlier tokens) of each request, for a look at the result.
EXAMPLES = {
    "one request, 256 earlier tokens": [(1, 256)],
    "8 requests, 256 earlier tokens each": [(1, 256)] * 8,
    "32 requests, 256 earlier tokens each": [(1, 256)] * 32,
    "32 requests, 1,024 earlier tokens each": [(1, 1024)] * 32,
    "a prompt of 512 tokens": [(512, 0)],
    "a prompt of 512 tokens beside 31 requests as above": [(512, 0), *[(1, 256)] * 31],
}

DESCRIPTION = """Measure what an iteration costs on this machine with a model, for `simulate`, `plan` and `replay`.

The engine that serves is given work at many batch sizes, prompt lengths and contexts, a few seconds each; of every
iteration its shape and its duration are noted; a cost is fitted, and stored with facts of machine, model and engine.
It takes a few minutes. Leave the machine alone meanwhile: what else runs on it becomes part of the result."""
EPILOG = """examples:
  orcaserve profile                        the default model, to the cache
  orcaserve profile path/to/model.gguf -o model.json
  orcaserve profile --quick                less than a minute, a coarser fit"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("-o", "--output", type=Path, metavar="FILE",
                        help="where to store it (default: profiles/MODEL.json in the cache)")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SECONDS:g} s for each point, not {SECONDS:g}")
    add_model_arguments(parser, positional=True)


def run(args: argparse.Namespace) -> int:
    config = engine_config(args)
    if config.parallel.n_workers > 1:
        raise ConfigError("--pipeline-parallel-size", "a profile is of an engine in one process")
    path: Path = args.output or default_profile(config.model.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    print_notes()
    from orcaserve import native
    from orcaserve.checkpoint.fingerprint import fingerprint
    from orcaserve.evaluation.measured_engine import MeasuredEngine
    from orcaserve.evaluation.profiling import measure, plan
    from orcaserve.evaluation.sizes import how_held, slot_bytes
    from orcaserve.simulation.machine import this_machine
    from orcaserve.simulation.profile import Profile, fit_cost, fit_errors, slowdown, with_pauses
    from orcaserve.simulation.shape import shape_of_sizes
    from orcaserve.worker.facts import n_threads_for

    held, (_, checkpoint_hash) = how_held(config), fingerprint(config.model.path)
    started = time.monotonic()
    with MeasuredEngine(config) as engine:
        facts = engine.facts
        cells = plan(facts.max_bs, facts.longest_request, facts.n_slots, QUICK_SECONDS if args.quick else SECONDS)
        if not cells:
            raise ConfigError("--n-slots", f"{facts.n_slots} slots are too few to measure anything")
        samples = measure(engine, cells, _Progress(len(cells)))
    typical = fit_cost(samples)
    factor = slowdown(typical, samples)
    cost = with_pauses(typical, samples)
    profile = Profile(
        machine=this_machine() | {"system": platform.platform(), "instruction_set": native.isa()},
        model={"name": facts.model_name, "weights": held.weights, "kv_cache_dtype": held.kv_cache_dtype,
               "weight_bytes": held.weight_bytes, "slot_bytes": slot_bytes(held.spec, held.kv_cache_dtype),
               "context_length": facts.context_length, "fingerprint": checkpoint_hash},
        engine={"threads": n_threads_for(config), "max_bs": facts.max_bs, "n_slots": facts.n_slots,
                "page_size": config.kv.page_size, "version": __version__},
        cost=cost,
        fit=fit_errors(typical, samples) | {"slowdown": round(factor, 4)},
        made=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    )  # fmt: skip
    profile.save(path)
    fit = profile.fit
    print(f"{fit['n_samples']} iterations in {time.monotonic() - started:.0f} s; the cost is off by "
          f"{float(fit['median_error']):.1%} (median), {float(fit['p90_error']):.1%} (p90); pauses make all "
          f"{factor - 1:.1%} slower")  # fmt: skip
    for what, sizes in EXAMPLES.items():
        print(f"  {what:<55} {cost.seconds(shape_of_sizes(sizes)) * 1e3:8.2f} ms an iteration")
    print(f"stored in {path}")
    return 0


class _Progress:
    """What is measured now, on the error stream: one line that changes on a terminal, else none."""

    def __init__(self, n_cells: int) -> None:
        self._n_cells = n_cells

    def __call__(self, index: int, cell: Cell) -> None:
        if sys.stderr.isatty():
            low, high = cell.inputs
            text = f"{index + 1} of {self._n_cells}: {cell.concurrency} at once, prompts of {low} to {high} tokens"
            print(f"\r\x1b[K{text}", end="" if index + 1 < self._n_cells else "\n", file=sys.stderr, flush=True)
