"""What does a mixture of experts reach in the CPU's kernels, of PyTorch's pace and of the machine's limits?

A random model of Mixtral's shape with 0.8 billion parameters, of which a token uses a quarter (random_model.MIXTURE).
Each row is the median of runs in processes of their own, decoding alone. What an iteration reads is counted by weights:
attention, head, and the experts that its rows are expected to choose if each is as likely as the others.

    python benchmarks/experts.py [--batch 1 8 32] [--prompt 8] [--gen 16] [--rounds 1] [--without-pytorch] [--out FILE]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import machine_limits
import report
from random_model import MIXTURE, Sizes, write_model
from throughputs import FIGURES, Results, Subject, Work, ours

from orcaserve.evaluation.sizes import BYTES, operations_per_token
from orcaserve.model.loader import ModelFiles

DECODE = FIGURES[1]
KERNELS = {"int8": "int8"}
PYTORCH = {"bfloat16": "bfloat16"}
COLUMNS = ("engine, weights", "batch", "tokens/s", "ms an iteration", "MB of weights read", "of the bandwidth",
           "of the arithmetic")  # fmt: skip


def weights_read(sizes: Sizes, batch: int) -> float:
    """How many an iteration of `batch` rows is expected to read."""
    expert = 3 * sizes.hidden * sizes.intermediate
    used = sizes.experts * (1 - (1 - sizes.chosen / sizes.experts) ** batch)
    table = sizes.vocab * sizes.hidden
    return replace(sizes, experts=0, intermediate=0).parameters - table + sizes.layers * used * expert


def measure(folder: Path, args: argparse.Namespace) -> Results:
    results, work = Results(), Work(tuple(args.batch), args.prompt, args.gen)
    more = ("--model", str(folder), "--repeat", "2")
    for _ in range(args.rounds):
        for form, kv in KERNELS.items():
            results.run(ours(form, kv, work, *more))
        for form, kv in () if args.without_pytorch else PYTORCH.items():
            results.run(ours(form, kv, work, *more, "--device", "reference"))
    return results


def rows(results: Results, args: argparse.Namespace, operations: int) -> Iterator[tuple[object, ...]]:
    reads = {form: [round(weights_read(MIXTURE, batch) * BYTES[form]) for batch in args.batch] for form in BYTES}
    limits = machine_limits.measure(sorted({n for form in (*KERNELS, *PYTORCH) for n in reads[form]}))
    for form in (*KERNELS, *PYTORCH):
        engine = "kernels" if form in KERNELS else "PyTorch"
        for batch, n_bytes in zip(args.batch, reads[form], strict=True):
            rate = results.figure(Subject("orcaserve", form), batch, args.prompt, DECODE)
            if rate is None:
                continue
            seconds, peak = batch / rate, limits.arithmetic(form)
            share = n_bytes / 1e9 / seconds / limits.read(n_bytes)
            arithmetic = "" if peak is None else f"{operations * rate / 1e9 / peak:.1%}"
            figures = f"{rate:,.1f}", f"{seconds * 1e3:,.1f}", f"{n_bytes / 1e6:,.0f}", f"{share:.0%}", arithmetic
            yield f"{engine}, {form}", batch, *figures


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Decoding of a mixture of experts: the kernels, PyTorch, and the limits."
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32], metavar="N", help="requests at once")
    parser.add_argument("--prompt", type=int, default=8, metavar="N", help="prompt tokens")
    parser.add_argument("--gen", type=int, default=16, metavar="N", help="tokens after the first one")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--without-pytorch", action="store_true")
    parser.add_argument("--out", metavar="FILE", help="write the table there too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_model(Path(name), MIXTURE)
        with ModelFiles(Path(name)) as files:
            operations = operations_per_token(files.spec)
        results = measure(Path(name), args)
    text = report.heading("A mixture of experts", __doc__)
    text += f"{MIXTURE.parameters / 1e9:.2f} billion parameters, {operations / 1e9:.2f} GOP a token.\n\n"
    text += report.table(COLUMNS, rows(results, args, operations))
    report.write("\n".join([text, *results.failures]), args.out)
    return 1 if results.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
