"""How far are the coarser forms of weights and K/V from float32 of the same file?

    python benchmarks/accuracy.py [--model M] [--forms float32/float32 int8/int8 ...] [--out FILE.md]

Perplexity of benchmarks/texts/persuasion.txt in windows of 1,024 tokens (every token but a window's first is
predicted), the mean KL divergence from float32 per token, and how often the likeliest token is the same. Then 50
prompts are continued greedily; where a text leaves float32's, float32's best two logits at that step should have been
close. The reference is float32 of the same file: of a 4-bit file, its own dequantised weights. Exit code 1 if a form
is out of bounds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from accuracy_measures import Divergence, Tally, blocks, first_difference, lead, log_softmax, windows
from accuracy_subject import Subject, load_subject
from report import Line, add_line_argument, heading, mark, table, write, write_lines

from orcaserve.checkpoint.locate import locate_model
from orcaserve.text.tokenizer import Tokenizer

TEXTS = Path(__file__).parent / "texts"
REFERENCE = "float32/float32"
FORMS = ("bfloat16/bfloat16", "int8/int8", "int4/int8")
WINDOW = 1024
STEPS = 32  # tokens of every greedy text
CLOSE = 0.1  # best two logits that may change places
SHARE = 0.9  # of the prompts: equal, or left at a close step
BOUNDS = {"float32": 0.005, "bfloat16": 0.005, "int8": 0.005, "int4": 0.01}  # of perplexity, by weights


def perplexities(
    subjects: Sequence[Subject], text: Sequence[int], n_windows: int | None, length: int = WINDOW
) -> list[Tally]:
    """One tally per subject, the first being the reference."""
    tallies = [Tally() for _ in subjects]
    for window in list(windows(text, length))[:n_windows]:
        logits = [subject.logits(window) for subject in subjects]
        for rows, targets in blocks(window):
            reference = log_softmax(logits[0][rows])
            for tally, its_logits in zip(tallies, logits, strict=True):
                tally.add(log_softmax(its_logits[rows]), reference, targets)
        print(f"{tallies[0].n} tokens:", ", ".join(f"{tally.perplexity:.4f}" for tally in tallies), flush=True)
    return tallies


def divergences(
    reference: Subject, subject: Subject, prompts: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]
) -> list[Divergence | None]:
    """Per prompt where the subject's greedy text leaves the reference's, None for equal texts."""
    found: list[Divergence | None] = []
    for prompt, right, text in zip(prompts, expected, subject.greedy(prompts, STEPS), strict=True):
        step = first_difference(right, text)
        if step is None:
            found.append(None)
        else:
            found.append(Divergence(step, lead(reference.logits([*prompt, *right[:step]])[-1])))
    return found


def perplexity_row(form: str, tally: Tally, reference: Tally) -> tuple[list[object], bool]:
    bound = BOUNDS[form.split("/")[0]]
    change = tally.perplexity / reference.perplexity - 1
    passed = abs(change) <= bound
    shown = [f"{change:+.3%}", f"{bound:.1%}", f"{tally.kl / tally.n:.5f}", f"{tally.same_best / tally.n:.2%}"]
    return [form, f"{tally.perplexity:.4f}", *shown, mark(passed)], passed


def greedy_row(form: str, found: Sequence[Divergence | None]) -> tuple[list[object], bool]:
    equal = sum(d is None for d in found)
    close = sum(d is not None and d.gap < CLOSE for d in found)
    far = sorted((d.gap, i) for i, d in enumerate(found, 1) if d is not None and d.gap >= CLOSE)
    passed = equal + close >= SHARE * len(found)
    gaps = ", ".join(f"{gap:.2f} (#{i})" for gap, i in far) or "none"
    return [form, equal, close, gaps, f"{(equal + close) / len(found):.0%}", mark(passed)], passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--forms", nargs="+", default=list(FORMS), help=f"weights/K/V, beside {REFERENCE}")
    parser.add_argument("--windows", type=int, help="only so many of the text's windows")
    parser.add_argument("--prompts", type=int, help="only so many of the prompts")
    parser.add_argument("--threads", "-t", type=int)
    parser.add_argument("--out")
    add_line_argument(parser)
    args = parser.parse_args()

    path = locate_model(args.model)
    tokenizer = Tokenizer.from_path(path)
    text = tokenizer.encode((TEXTS / "persuasion.txt").read_text())
    prompts = [tokenizer.encode(p) for p in json.loads((TEXTS / "prompts.json").read_text())][: args.prompts]
    forms = [REFERENCE, *(form for form in args.forms if form != REFERENCE)]
    n_tokens = max(WINDOW, sum(-(-(len(prompt) + STEPS) // 16) * 16 for prompt in prompts))
    subjects = [load_subject(path, form, n_tokens, args.threads) for form in forms]

    tallies = perplexities(subjects, text, args.windows)
    expected = subjects[0].greedy(prompts, STEPS)
    found = [divergences(subjects[0], subject, prompts, expected) for subject in subjects]
    by_perplexity = [perplexity_row(form, tally, tallies[0]) for form, tally in zip(forms, tallies, strict=True)]
    by_text = [greedy_row(form, differences) for form, differences in zip(forms, found, strict=True)]

    write(
        heading("Accuracy", __doc__)
        + f"Weights/K/V; {tallies[0].n:,} predicted tokens of texts/persuasion.txt; KL in nats per token.\n\n"
        + table(
            ["form", "perplexity", "change", "bound", "KL from float32", "same best token", ""],
            [row for row, _ in by_perplexity],
        )
        + f"\n{len(prompts)} prompts, {STEPS} tokens each, greedy. "
        + f"Close: float32's two best logits are less than {CLOSE} apart.\n\n"
        + table(
            [
                "form",
                "equal",
                "leaves it at a close step",
                "gaps (and prompts) of other differences",
                "equal or close",
                "",
            ],
            [row for row, _ in by_text],
        ),
        args.out,
    )
    lines = []
    for form, (row, good), (texts, right) in list(zip(forms, by_perplexity, by_text, strict=True))[1:]:
        lines.append(Line(f"perplexity of {form} against float32", str(row[3]), str(row[2]), "float32", "", good))
        what = f"greedy texts of {form} equal or close"
        lines.append(Line(what, f"{SHARE:.0%}", str(texts[4]), "float32", "", right))
    write_lines(lines, args.lines)
    return 0 if all(good for _, good in [*by_perplexity, *by_text]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
