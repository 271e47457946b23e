"""`orcaserve plan`: what a model needs of its hardware, and which settings carry the most load within a target."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orcaserve.cli.planned import add_planned_arguments, planned_divisions, planned_engine
from orcaserve.cli.workload_options import add_workload_arguments, workload
from orcaserve.core.errors import ConfigError

if TYPE_CHECKING:
    from orcaserve.evaluation.planning.plan import Plan
    from orcaserve.evaluation.targets import Target

EXAMPLES = """examples:
  orcaserve plan 175b --target "p50_normalized<=190ms"
  orcaserve plan default --workload azure-conv --max-input 1024 --max-output 256 --target "p99_itl<=80ms"
  orcaserve plan path/to/model --hardware h100 --target "ttft_p99<=2s" --target "p50_itl<=40ms" --load 50
exit code: 0 if the target can be met; 1 if the model does not fit, or the target is missed at any load"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Before anything is loaded: bytes of weights, of a K/V slot, of workspace, and whether they fit; then, by "
        "simulation with the scheduler that serves, the max_bs, n_slots and replicas that carry the most load within "
        "the target, and the load at which it breaks."
    )
    parser.epilog = EXAMPLES
    add_planned_arguments(parser)
    add_workload_arguments(parser, n=600, rates=False)
    group = parser.add_argument_group("plan")
    group.add_argument("--target", action="append", metavar="TARGET", default=None,
                       help="such as p50_normalized<=190ms, p99_itl<=80ms or ttft_p99<=2s; may be given several times "
                       "(default: p50_normalized<=190ms)")  # fmt: skip
    group.add_argument("--load", type=_load, metavar="R", help="requests a second to carry: with how many replicas?")
    group.add_argument("--devices", type=_devices, metavar="N",
                       help="so many accelerators: into how many replicas are they best divided?")  # fmt: skip
    group.add_argument("--plot", type=Path, metavar="FILE.svg|FILE.png", help="draw latency against load")
    group.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> int:
    from orcaserve.evaluation.targets import parse_target

    if args.devices and args.load:
        raise ConfigError("--devices", "give --devices or --load, not both")
    targets = [parse_target(text) for text in args.target or ["p50_normalized<=190ms"]]
    found = _divided(args, targets) if args.devices else _one(args, targets)
    _wipe()
    print(json.dumps(found.as_json()) if args.json else found.text())
    if args.plot is not None and found.tried:
        _plot(found, args.plot)
    return 0 if found.fits else 1


def _one(args: argparse.Namespace, targets: Sequence[Target]) -> Plan:
    from orcaserve.evaluation.planning.plan import make_plan

    return make_plan(planned_engine(args), workload(args), targets, args.load, args.seed, _say)


def _divided(args: argparse.Namespace, targets: Sequence[Target]) -> Plan:
    """The way to divide the devices that carries the most."""
    from orcaserve.evaluation.planning.plan import make_plan

    plans = []
    for engine in planned_divisions(args, args.devices):
        say = partial(_say_of, engine.where)
        plan = make_plan(engine, workload(args), targets, None, args.seed, say)
        plans.append(replace(plan, n_devices=args.devices))
    if not args.json:
        _wipe()
        for plan in plans:
            print(f"{plan.replicas} x ({plan.engine.where}): {plan.load_of_all:.3g} req/s")
        print()
    return max(plans, key=lambda plan: plan.load_of_all)


def _plot(found: Plan, path: Path) -> None:
    from orcaserve.evaluation.pictures.png import save_png

    if path.suffix == ".png":
        save_png(found.picture(), path)
    else:
        path.write_text(found.picture().svg())


def _say_of(where: str, text: str) -> None:
    _say(f"{where}, {text}")


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[Kplan: {text} ...", end="", file=sys.stderr, flush=True)


def _wipe() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _devices(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 4096):
        raise argparse.ArgumentTypeError("takes an integer from 1 to 4096")
    return int(text)


def _load(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError("takes requests a second, above 0")
    return value
