"""What does each quantised format cost, as our engine runs it, and is what it costs the format's own loss?

    python benchmarks/formats.py [--model M] [--formats NAME ...] [--windows 4] [--out FILE.md]

A model of Llama's kind in a GGUF file is written anew in every quantised format that is read, each weight rounded to
the nearest number that the format has (no calibration, no search). Each file is run as a user gets it (`auto`: int8
kernels; of 4-bit formats also `int4`), K/V in int8, and beside it, in float32, the weights that it stands for by its
definition, worked out without our readers. Perplexity of benchmarks/texts/persuasion.txt in windows of 1,024 tokens.

The bound is on what our engine adds: int8 within 0.5 % of the file's own weights in float32, int4 within 1 %. The loss
of these against the model at the beginning is the format's. Exit code 1 if one is out of bounds.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accuracy import BOUNDS, TEXTS, WINDOW, perplexities
from accuracy_measures import Tally
from accuracy_subject import load_subject
from quantised_files import Plain, Writer, awq, compressed, gptq, in_gguf, read_gguf
from report import Line, add_line_argument, heading, mark, table, write_lines

from orcaserve.checkpoint.locate import locate_model
from orcaserve.text.tokenizer import Tokenizer

FLOATS = "float32/float32"
AUTO, INT4 = "auto/int8", "int4/int8"
HELD = {AUTO: "int8", INT4: "int4"}


@dataclass(frozen=True, slots=True)
class Format:
    """reported: what its authors say that rounding to nearest costs."""

    write: Writer
    four_bits: bool
    reported: str = ""


LLAMA = "llama.cpp, LLaMA 7B"
FORMATS = {
    "GPTQ, groups of 32": Format(gptq(32, True), True),
    "GPTQ, groups of 128, asymmetric": Format(gptq(128, False), True, "+34.8 % (OPT-125M, a group per output)"),
    "AWQ, groups of 64": Format(awq(64), True, "+4.8 % (Llama 2 7B, groups of 128)"),
    "W4A16, groups of 32": Format(compressed(4, 32, True, True), True),
    "W4A16, groups of 64, asymmetric": Format(compressed(4, 64, False, True), True),
    "W8A8, channels": Format(compressed(8, None, True, False), False),
    "W8A16, groups of 64, asymmetric": Format(compressed(8, 64, False, True), False),
    "Q4_0": Format(in_gguf("Q4_0"), True, f"+3.7 % ({LLAMA})"),
    "Q4_1": Format(in_gguf("Q4_1"), True, f"+2.7 % ({LLAMA})"),
    "Q5_0": Format(in_gguf("Q5_0"), False, f"+1.2 % ({LLAMA})"),
    "Q5_1": Format(in_gguf("Q5_1"), False, f"+0.6 % ({LLAMA})"),
    "Q8_0": Format(in_gguf("Q8_0"), False, f"below 0.1 % ({LLAMA})"),
    "Q4_K": Format(in_gguf("Q4_K"), True, f"+1.7 % ({LLAMA})"),
    "Q5_K": Format(in_gguf("Q5_K"), False, f"+0.7 % ({LLAMA})"),
    "Q6_K": Format(in_gguf("Q6_K"), False, f"below 0.1 % ({LLAMA})"),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One format held in one way: what was predicted by the file, and by the weights that it stands for."""

    form: str
    tally: Tally
    reference: Tally

    @property
    def change(self) -> float:
        return self.tally.perplexity / self.reference.perplexity - 1

    @property
    def kl(self) -> float:
        """Nats per token."""
        return self.tally.kl / self.tally.n

    @property
    def bound(self) -> float:
        return BOUNDS[HELD[self.form]]

    @property
    def passed(self) -> bool:
        return abs(self.change) <= self.bound


def measure(
    plain: Plain, format: Format, text: Sequence[int], n_windows: int | None, threads: int | None, window: int = WINDOW
) -> tuple[float, list[Measured]]:
    """Bits of a weight, and each way to hold the format."""
    forms = (AUTO, INT4) if format.four_bits else (AUTO,)
    with tempfile.TemporaryDirectory() as name:
        written = format.write(plain, Path(name) / "quantised")
        reference = written.plain.save(Path(name) / "plain")
        subjects = [load_subject(reference, FLOATS, window, threads)]
        subjects += [load_subject(written.path, form, window, threads) for form in forms]
        first, *others = perplexities(subjects, text, n_windows, window)
    return written.bits, [Measured(form, tally, first) for form, tally in zip(forms, others, strict=True)]


def row(name: str, format: Format, bits: float, measured: Measured, base: Tally) -> list[object]:
    tally, reference = measured.tally, measured.reference
    return [
        name,
        f"{bits:.2f}",
        HELD[measured.form],
        f"{tally.perplexity:.3f}",
        f"{reference.perplexity:.3f}",
        f"{measured.change:+.3%}",
        f"{measured.bound:.1%}",
        mark(measured.passed),
        f"{measured.kl:.5f}",
        f"{reference.perplexity / base.perplexity - 1:+.2%}",
        format.reported,
    ]


COLUMNS = ("format", "bits a weight", "held in", "perplexity", "of its weights in float32", "change", "bound", "",
           "KL", "loss of these weights", "reported")  # fmt: skip

NOTES = """KL in nats per token, from the file's own weights in float32. The loss is against the weights of the model at
the beginning, which had been rounded to 4 bits in blocks of 32 with a minimum once before (Q4_1): formats whose grid is
the same lose nothing, and the others more than they would of a model in full precision, for going from one grid to
another errs in the same direction again and again; and a model so small loses more than a large one. Reported is
what the authors of the formats have published for other models and another text, Wikitext 2: llama.cpp in the help of
`llama-quantize` (LLaMA 7B, some tensors in more bits, the K kinds as "_S"; Q6_K and Q8_0 change it by 0.001 at most);
Lin and others for AWQ (2023) and Frantar and others for GPTQ (2022), rounding to nearest in both. K kinds are Q5_0,
Q5_1 and Q8_0 where a matrix's inputs are no multiple of 256, as in llama.cpp; of the default model that is all but the
MLP's last matrix.
"""


def report(base: Tally, found: Sequence[tuple[str, float, Sequence[Measured]]]) -> str:
    rows = [row(name, FORMATS[name], bits, each, base) for name, bits, forms in found for each in forms]
    return (
        heading("Formats", __doc__)
        + f"{base.n:,} predicted tokens of texts/persuasion.txt; perplexity of the model at the beginning, in float32: "
        + f"{base.perplexity:.3f}.\n\n{table(COLUMNS, rows)}\n{NOTES}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS), metavar="NAME")
    parser.add_argument("--windows", type=int, default=4, help="how many of the text's 26; 0 = all")
    parser.add_argument("--threads", "-t", type=int)
    parser.add_argument("--out")
    add_line_argument(parser)
    args = parser.parse_args()
    n_windows = args.windows or None

    path = locate_model(args.model)
    text = Tokenizer.from_path(path).encode((TEXTS / "persuasion.txt").read_text())
    plain = read_gguf(path)
    with tempfile.TemporaryDirectory() as name:
        folder = plain.save(Path(name) / "base")
        (base,) = perplexities([load_subject(folder, FLOATS, WINDOW, args.threads)], text, n_windows)
    found = []
    for name in args.formats:
        print(name, flush=True)
        found.append((name, *measure(plain, FORMATS[name], text, n_windows, args.threads)))
        if args.out:  # a long run that is ended early has something to show
            Path(args.out).write_text(report(base, found))
    print(report(base, found))
    every = [(name, each) for name, _, forms in found for each in forms]
    lines = [Line(f"perplexity of {name} in {HELD[each.form]} against its own weights", f"{each.bound:.1%}",
                  f"{each.change:+.3%}", "float32", "", each.passed) for name, each in every]  # fmt: skip
    write_lines(lines, args.lines)
    return 0 if all(each.passed for _, each in every) else 1


if __name__ == "__main__":
    raise SystemExit(main())
