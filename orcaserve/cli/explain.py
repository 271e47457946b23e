"""`orcaserve explain`: a schedule log in plain words."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Tell one request's life from a schedule log: what it waited for, who ran with it, what delayed it."
    )
    parser.epilog = (
        "example: orcaserve serve --schedule-log run.log ... then: orcaserve explain run.log 17\n"
        "Requests are numbered in order of arrival, each choice of an answer by itself. Without REQUEST: which ones\n"
        "took longest for each token."
    )
    parser.add_argument("log", type=Path, metavar="LOG", help="what `orcaserve serve --schedule-log` wrote")
    parser.add_argument("request", nargs="?", type=int, metavar="REQUEST", help="its number")
    parser.add_argument(
        "--most", type=int, default=20, metavar="N", help="lines without REQUEST (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    from orcaserve.schedule_log.explain import overview, tell
    from orcaserve.schedule_log.reader import read_log

    log = read_log(args.log)
    if log.cut:
        print(f"orcaserve: {args.log}: the last line is cut short, and left out", file=sys.stderr)
    print(overview(log, args.most) if args.request is None else tell(log, args.request))
    return 0
