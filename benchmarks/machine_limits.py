"""What this machine can do at most, measured now: machine_limits.cpp, built for it and run.

python benchmarks/machine_limits.py [--threads N]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".cpp")
# Forms of weights -> the arithmetic they are multiplied with; the best of several where an engine may choose.
ARITHMETIC = {
    "float32": ("float32",),
    "bfloat16": ("bfloat16", "float32"),
    **dict.fromkeys(("int8", "int4", "Q8_0", "Q4_0"), ("int8",)),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """operations: kind -> giga-operations/s, None without such instructions. reads: working set in bytes -> GB/s."""

    threads: int
    operations: dict[str, float | None]
    reads: dict[int, float]

    def read(self, n_bytes: int) -> float:
        """GB/s of a working set about as large."""
        return self.reads[min(self.reads, key=lambda size: abs(size - n_bytes))]

    def arithmetic(self, form: str) -> float | None:
        """Giga-operations/s for weights held in this form."""
        known = [value for kind in ARITHMETIC[form] if (value := self.operations[kind]) is not None]
        return max(known, default=None)

    def better_of(self, other: Limits) -> Limits:
        """A limit is what was seen to be possible once."""
        operations = {
            kind: max((x for x in (value, other.operations[kind]) if x is not None), default=None)
            for kind, value in self.operations.items()
        }
        return Limits(self.threads, operations, {n: max(x, other.reads[n]) for n, x in self.reads.items()})


def measure(sizes: Iterable[int], threads: int | None = None) -> Limits:
    """Build and run; takes a few seconds. sizes: working sets in bytes."""
    threads = threads or len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "machine_limits")
        compiler = os.environ.get("CXX", "c++")
        flags = ["-O3", "-march=native", "-std=c++17", "-pthread"]
        subprocess.run([compiler, *flags, str(SOURCE), "-o", program], check=True)
        command = [program, str(threads), *map(str, sizes)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    reads = {int(size): value for size, value in found["read_gb_s"].items()}
    return Limits(threads, found["giga_operations"], reads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    limits = measure((16_000_000, 135_000_000, 1_000_000_000), args.threads)
    for kind, value in limits.operations.items():
        print(f"{kind:>8}: {'no such instructions' if value is None else f'{value:,.0f} GOP/s'}")
    for size, bandwidth in limits.reads.items():
        print(f"reading {size / 1e6:,.0f} MB: {bandwidth:.1f} GB/s")


if __name__ == "__main__":
    main()
