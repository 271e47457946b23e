"""The flags that say which requests come when, shared by every verb that needs some."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from orcaserve.core.errors import ConfigError
from orcaserve.workload.arrival import Arrival
from orcaserve.workload.named import FORMS, Workload, named_source
from orcaserve.workload.shape import Shape

MOST_REQUESTS = 10**7
GROUP = """Which requests come, and when. Lengths are known and outputs never end early, whatever the model says.
  paper               the Orca paper's trace: input U(32,512), output U(1,128)
  homogeneous:IN:OUT  all alike, for example homogeneous:256:256
  azure-conv          recorded, 19,366 requests in an hour of a conversation service (Azure 2023, CC BY 4.0)
  azure-code          recorded, 8,819 requests of a code service
  FILE.csv[.gz]       recorded by you: columns TIMESTAMP, ContextTokens, GeneratedTokens
  log:FILE            the requests of a schedule log, which `orcaserve serve --schedule-log FILE` writes"""


def add_workload_arguments(parser: argparse.ArgumentParser, *, n: int, rates: bool = True) -> None:
    """n: requests unless --n says otherwise. rates: with --rate; a verb that tries many rates has none."""
    group = parser.add_argument_group("workload", GROUP)
    group.add_argument("--workload", default="paper", metavar="NAME", help=f"{FORMS} (default: %(default)s)")
    group.add_argument("--n", "--num-prompts", type=_count, default=n, metavar="N",
                       help="requests; of a trace: so many consecutive ones, from a place that the seed draws "
                       "(default: %(default)s)")  # fmt: skip
    if rates:
        group.add_argument("--rate", "--request-rate", type=_positive, metavar="R",
                           help="requests a second, the mean; the times of a trace are stretched to it (default: a "
                           "trace's own; else all come at once)")  # fmt: skip
    group.add_argument("--burstiness", type=_positive, metavar="B", help="draw arrival times with Gamma gaps of this "
                       "shape: 1 is Poisson, less comes in bunches, more is even (default: a trace's own times, "
                       "else 1)")  # fmt: skip
    group.add_argument("--seed", type=int, default=0, metavar="N", help="the same seed gives the same requests")
    group.add_argument("--max-input", type=_count, metavar="N", help="cut inputs to so many tokens")
    group.add_argument("--max-output", type=_count, metavar="N", help="cut outputs to so many tokens")
    group.add_argument("--scale-lengths", type=_positive, default=1.0, metavar="F",
                       help="multiply all lengths by this before they are cut (default: 1)")  # fmt: skip


def workload(args: argparse.Namespace) -> Workload:
    """Raises ConfigError naming the flag, or line and field of a file."""
    shape = Shape(args.scale_lengths, args.max_input, args.max_output)
    return Workload(args.workload, named_source(args.workload, read_schedule_log), args.n, shape, args.burstiness)


def read_schedule_log(path: Path) -> Sequence[Arrival]:
    """The requests of our own server that were given tokens. Raises ConfigError naming file, line and field."""
    from orcaserve.schedule_log.reader import read_log
    from orcaserve.simulation.logged import read_recorded

    try:
        return read_recorded(read_log(path)).arrivals
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror or error}") from error


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_REQUESTS):
        raise argparse.ArgumentTypeError(f"takes an integer from 1 to {MOST_REQUESTS}")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (0 < value < math.inf):
        raise argparse.ArgumentTypeError("takes a number above 0")
    return value
