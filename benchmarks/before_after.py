"""Has anything made the default model slower? Two checkouts, their iterations in turn.

    python benchmarks/before_after.py BEFORE [AFTER] [--rounds 40] [--seconds 150] [--out FILE.md]

BEFORE, AFTER: checkouts of this repository with compiled kernels; AFTER is this one if not given. Each loads the model
in a process of its own (before_after_subject.py), and these take turns at the same requests, every work in every round,
so that a machine that changes its pace changes it for both: what counts is the median of the ratios of neighbours.
While one works, the other waits on a pipe. Times are those of whole iterations, with the scheduler. Exit code 1 if one
is out of bounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles

from report import Line, add_line_argument, heading, mark, table, write, write_lines

ROOT = Path(__file__).parents[1]
MOST = 1.03  # after over before


@dataclass(frozen=True, slots=True)
class Work:
    """Equal requests at once. figure: what of them counts, "decode" (seconds of an iteration) or "prompt" (until the
    first tokens)."""

    what: str
    batch: int
    prompt: int
    gen: int
    figure: str


WORKS = (
    Work("decode, batch 1", 1, 32, 33, "decode"),
    Work("decode, batch 8", 8, 32, 33, "decode"),
    Work("decode, batch 32", 32, 32, 33, "decode"),
    Work("prompt of 512", 1, 512, 2, "prompt"),
)


class Side:
    """A checkout's process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def seconds(self, work: Work) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(work)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"the process of a checkout ended with {self._process.wait()}")
        return float(json.loads(answer))


@contextmanager
def side(checkout: Path, model: str | None, form: str) -> Iterator[Side]:
    command = [sys.executable, str(Path(__file__).parent / "before_after_subject.py"), str(checkout), form]
    paths = [str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen([*command, *([model] if model else [])], text=True, env=environment,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # fmt: skip
        yield Side(process)
        assert process.stdin is not None
        process.stdin.close()


@dataclass(slots=True)
class Pairs:
    """Seconds of one work, before and after, in neighbouring runs."""

    work: Work
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [after / before for before, after in zip(self.before, self.after, strict=True)]

    @property
    def passed(self) -> bool:
        return median(self.ratios) <= MOST

    def row(self) -> list[object]:
        low, _, high = quantiles(self.ratios, n=4)
        shown = [f"{median(times) * 1000:.2f}" for times in (self.before, self.after)]
        return [self.work.what, *shown, f"{median(self.ratios):.3f}", f"{low:.3f} to {high:.3f}",
                f"{MOST:.2f}", mark(self.passed)]  # fmt: skip


def measure(before: Side, after: Side, works: Sequence[Work], rounds: int, seconds: float) -> list[Pairs]:
    """Who is first changes from round to round. One round more, the first, is not counted. seconds: after which no
    round is begun, if there have been two."""
    pairs, ends = [Pairs(work) for work in works], time.monotonic() + seconds
    for turn in range(-1, rounds):
        if turn > 1 and time.monotonic() > ends:
            break
        for each in pairs:
            sides = ((before, each.before), (after, each.after))
            for one, times in sides if turn % 2 else sides[::-1]:
                took = one.seconds(each.work)
                if turn >= 0:
                    times.append(took)
        if turn >= 0:
            last = ", ".join(f"{each.before[-1] * 1000:.2f} {each.after[-1] * 1000:.2f}" for each in pairs)
            print(f"{turn + 1}: {last}", file=sys.stderr, flush=True)
    return pairs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path, nargs="?", default=ROOT)
    parser.add_argument("--model")
    parser.add_argument("--form", default="int8", help="of the weights: int8, int4, float32, bfloat16")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no round after these")
    parser.add_argument("--out")
    add_line_argument(parser)
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error("--rounds must be at least 2")
    for checkout in (args.before, args.after):
        if not list((checkout / "orcaserve/native").glob("_kernels*.so")):
            parser.error(f"{checkout} is no checkout with compiled kernels")

    with ExitStack() as stack:
        before, after = (
            stack.enter_context(side(path.resolve(), args.model, args.form)) for path in (args.before, args.after)
        )
        pairs = measure(before, after, WORKS, args.rounds, args.seconds)
    commits = " and ".join(commit(path) for path in (args.before, args.after))
    write(
        heading("Before and after", __doc__)
        + f"Commits {commits}; weights in {args.form}; {len(pairs[0].before)} rounds. Milliseconds: medians. "
        + "Ratio: the median of what pairs of neighbours have, and their quartiles.\n\n"
        + table(["", "before", "after", "ratio", "quartiles", "bound", ""], [each.row() for each in pairs]),
        args.out,
    )
    write_lines(
        [Line(f"{p.work.what}, after over before", f"{MOST:.2f}", f"{median(p.ratios):.3f}", "", "", p.passed)
         for p in pairs],
        args.lines,
    )  # fmt: skip
    return 0 if all(each.passed for each in pairs) else 1


def commit(checkout: Path) -> str:
    done = subprocess.run(["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                          check=False)  # fmt: skip
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    raise SystemExit(main())
