"""`orcaserve replay`: a schedule log through the same scheduler once more, with other settings if one likes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from orcaserve.cli.options import add_bound_arguments
from orcaserve.config import FIRST_ITERATIONS, POLICY_NAMES, Fairness, PolicyName, SchedulerConfig
from orcaserve.core import ConfigError

if TYPE_CHECKING:
    from orcaserve.schedule_log.format import Log
    from orcaserve.simulation.logged import Recorded
    from orcaserve.simulation.outcome import Outcome, Summary
    from orcaserve.simulation.setting import Setting

MOST_NAMED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run the arrivals of a schedule log through the scheduler again: as they were, which must give the same\n"
        "batches in the same order; and with other settings, in virtual time, with iterations that cost what the log\n"
        "says that they cost."
    )
    parser.epilog = "example: orcaserve replay run.log --max-num-seqs 64 --scheduling-policy request-level"
    parser.add_argument("log", type=Path, metavar="LOG", help="what `orcaserve serve --schedule-log` wrote")
    group = parser.add_argument_group("other settings", "What is not given stays as it was.")
    group.add_argument("-np", "--max-num-seqs", type=int, metavar="N", help="max_bs: most requests in one batch")
    group.add_argument("--n-slots", type=int, metavar="N", help="size of the K/V region in tokens")
    group.add_argument("--scheduling-policy", choices=POLICY_NAMES, help="who chooses the next batch")
    group.add_argument("--microbatch-size", type=int, metavar="N", help="of request-level")
    group.add_argument("--first-iteration", choices=FIRST_ITERATIONS, help="of request-level")
    add_bound_arguments(group)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")


def run(args: argparse.Namespace) -> int:
    from orcaserve.schedule_log.reader import read_log
    from orcaserve.simulation.logged import cost_of, read_recorded
    from orcaserve.simulation.profile import fit_errors
    from orcaserve.simulation.reproduce import reproduce

    log = read_log(args.log)
    changed = _changed(args, log)
    if log.cut:
        print(f"orcaserve: {args.log}: the last line is cut short, and left out", file=sys.stderr)
    same = reproduce(log)
    recorded = read_recorded(log)
    cost = cost_of(log, recorded)
    as_it_was = _setting(args, log, cost, {})
    columns = {"recorded": recorded.outcome, "replayed": as_it_was.run(recorded.arrivals)}
    if changed:
        other = _setting(args, log, cost, changed)
        other.check()
        columns["changed"] = other.run(recorded.arrivals)
    summaries = {name: outcome.summary() for name, outcome in columns.items()}
    fit = fit_errors(cost.each, recorded.samples)
    if args.json:
        print(
            json.dumps(
                {
                    "batches_reproduced": same.n_same,
                    "difference": same.difference,
                    "requests_left_out": recorded.n_left_out,
                    "fit": fit,
                    "changed": changed,
                    **{name: summary.as_json() for name, summary in summaries.items()},
                }
            )
        )
        return 0 if same.difference is None else 1
    _print_reproduction(same.n_same, same.difference, same.n_left_out)
    print(
        f"cost of an iteration: fitted from {fit['n_samples']:,}, off by {fit['median_error']:.1%} in the middle"
        + (", stages taken as equal" if log.settings.n_workers > 1 else "")
    )
    if recorded.n_left_out:
        print(f"left out: {recorded.n_left_out} requests without a token, or that came before the log begins")
    print()
    _print_table(summaries, changed)
    if changed:
        print()
        _print_requests(recorded, columns["replayed"], columns["changed"])
    return 0 if same.difference is None else 1


def _changed(args: argparse.Namespace, log: Log) -> dict[str, object]:
    """What is to be other than it was. Raises ConfigError for settings that contradict each other."""
    was = log.settings
    policy = cast(PolicyName, args.scheduling_policy or was.policy)
    max_bs = args.max_num_seqs if args.max_num_seqs is not None else was.max_bs
    stays = policy == was.policy
    microbatch = args.microbatch_size if args.microbatch_size is not None else was.microbatch_size if stays else None
    bound = {
        "fairness": args.fairness or (was.fairness if stays else "none"),
        "batched_tokens": _kept(args.max_num_batched_tokens, was.batched_tokens if stays else None),
        "target_itl": args.target_itl or (was.target_itl if stays else None),
    }
    SchedulerConfig(
        max_bs, policy, microbatch, args.first_iteration, cast(Fairness, bound["fairness"]),
        cast(int | None, bound["batched_tokens"]), cast(float | None, bound["target_itl"]),
    )  # fmt: skip
    if policy == "request-level" and was.n_workers > 1 and microbatch is None:
        raise ConfigError("--microbatch-size", f"request-level needs it with {was.n_workers} stages")
    if args.n_slots is not None and args.n_slots < was.page_size:
        raise ConfigError("--n-slots", f"must be an integer of {was.page_size} or more")
    asked = {
        "policy": args.scheduling_policy,
        "max_bs": args.max_num_seqs,
        "n_slots": args.n_slots,
        "microbatch_size": args.microbatch_size,
        "shortest_first": None if args.first_iteration is None else args.first_iteration == "shortest",
    }
    changed = {name: value for name, value in asked.items() if value is not None and value != getattr(was, name)}
    changed |= {name: value for name, value in bound.items() if value != getattr(was, name)}
    if "policy" in changed:
        changed["microbatch_size"] = microbatch
    return changed


def _kept(asked: int | None, was: int | None) -> int | None:
    """Tokens of an iteration; 0: any number."""
    return was if asked is None else asked or None


def _setting(args: argparse.Namespace, log: Log, cost: object, changed: dict[str, object]) -> Setting:
    from orcaserve.simulation.setting import Setting

    was = log.settings
    made_of: dict[str, object] = {
        "n_slots": was.n_slots,
        "max_bs": was.max_bs,
        "longest": was.longest,
        "page_size": was.page_size,
        "policy": was.policy,
        "microbatch_size": was.microbatch_size,
        "shortest_first": was.shortest_first,
        "fairness": was.fairness,
        "batched_tokens": was.batched_tokens,
        "target_itl": was.target_itl,
        "sources": was.sources,
        "window": was.window,
    }
    return Setting(cost, **(made_of | changed))  # type: ignore[arg-type]


def _print_reproduction(n_same: int, difference: str | None, n_left_out: int) -> None:
    if difference is not None:
        print(f"order of batches: the first {n_same:,} are the same, then {difference}")
    elif n_same == 0:
        print(
            "order of batches: cannot be compared, for requests were live all the time that the log covers, or share "
            "prefixes that were made before it begins"
        )
    else:
        after = f", from where the {n_left_out} requests had ended that the log begins amid" if n_left_out else ""
        print(f"order of batches: all {n_same:,} the same as recorded{after}")


def _print_table(summaries: dict[str, Summary], changed: dict[str, object]) -> None:
    heads = {"recorded": "recorded", "replayed": "replayed as it was"}
    heads["changed"] = "with " + ", ".join(f"{name} {value}" for name, value in changed.items() if value is not None)
    names = list(summaries)
    width = [max(len(heads[name]), 10) for name in names]
    print(" " * 34 + "  ".join(f"{heads[name]:>{w}}" for name, w in zip(names, width, strict=True)))
    for label, values in _rows([summaries[name] for name in names]):
        print(f"{label:<34}" + "  ".join(f"{value:>{w}}" for value, w in zip(values, width, strict=True)))


def _rows(columns: Sequence[Summary]) -> Sequence[tuple[str, list[str]]]:
    rows = [
        ("iterations", [f"{c.n_iterations:,}" for c in columns]),
        ("seconds until the last token", [f"{c.seconds:,.2f}" for c in columns]),
        ("requests refused", [f"{c.n_refused:,}" for c in columns]),
        ("requests/s", [f"{c.throughput:.2f}" for c in columns]),
        ("tokens/s", [f"{c.tokens_per_second:,.1f}" for c in columns]),
    ]
    for label, name in (("to the first token", "ttft"), ("between tokens", "itl"), ("for each token", "normalised")):
        for share in ("p50", "p90", "p99"):
            row = [f"{getattr(getattr(c, name), share):,.1f}" for c in columns]
            rows += [(f"{label}, ms, {share}", row)]
    return rows


def _print_requests(recorded: Recorded, before: Outcome, after: Outcome) -> None:
    """Whose life changes most, both times replayed."""
    moved = [
        (new.latency - old.latency, request_id)
        for request_id, old, new in zip(recorded.ids, before.lives, after.lives, strict=True)
        if old.refused is None and new.refused is None
    ]
    sooner, later = [m for m in moved if m[0] < 0], [m for m in moved if m[0] > 0]
    print(f"of {len(moved):,} requests, {len(sooner):,} would have ended sooner and {len(later):,} later")
    for label, some in (("sooner", sorted(sooner)), ("later", sorted(later, reverse=True))):
        if some:
            named = ", ".join(f"{request_id} by {abs(seconds):.2f} s" for seconds, request_id in some[:MOST_NAMED])
            print(f"most {label}: request {named}")
