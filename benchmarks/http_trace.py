"""How many requests a second of the paper's trace are carried at 190 ms median normalised latency, over HTTP?

    python benchmarks/http_trace.py [--llama-server PATH --llama-model FILE.gguf] [--out FILE.md]

`orcaserve bench serve` plays the trace (input U(32, 512), output U(1, 128), Poisson arrivals). For every server the
rate is raised until the median is past the bound, then the interval is halved; what counts is the req/s that the server
completed at the highest rate within the bound. A probe lasts as many seconds for every server, so that a queue that
grows shows, and meets a server that was just started. llama-server gets 32 slots. Both are measured in one run, one
after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from report import Line, add_line_argument, heading, table, write, write_lines
from server import serving, started
from throughputs import form_flags

BOUND_MS = 190.0
GOAL = 6.0
SLOTS = 32
CONTEXT = 1024  # tokens of one of llama-server's slots: the trace's longest request is 512 + 128 tokens
STEP = 1.5  # from one rate to the next while it is raised
HALVINGS = 3


@dataclass(frozen=True, slots=True)
class Probe:
    """One play of the trace. rate: of arrivals; carried: completed requests a second; text: what else was measured."""

    rate: float
    carried: float
    normalised_ms: float
    text: str

    @property
    def within(self) -> bool:
        return self.normalised_ms <= BOUND_MS


def play(base: str, rate: float, n: int) -> Probe:
    flags = ["--workload", "paper", "--rate", f"{rate:.3f}", "--n", str(n), "--json"]
    command = [sys.executable, "-m", "orcaserve", "bench", "serve", base, *flags]
    probe = read(rate, json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))
    print(f"offered {rate:.2f}: {probe.carried:.2f} req/s, {probe.normalised_ms:.0f} ms; {probe.text}", flush=True)
    return probe


def read(rate: float, found: dict[str, Any]) -> Probe:
    """Of the generator's result. Ends the program if requests have failed: nothing would be comparable."""
    if found["errors"]:
        raise SystemExit(f"requests have failed: {found['errors']} {found['details']}")
    first = found["ttft_ms"]
    text = f"ttft ms p50 {first['p50']:.0f} p99 {first['p99']:.0f}; gap p99 {found['itl_ms']['p99']:.0f}; "
    text += found["run"]["prompts"]
    if found["generator"]["warning"]:
        text += f"; {found['generator']['warning']}"
    return Probe(rate, found["req_s"], found["normalized_ms"]["p50"], text)


def search(probe: Callable[[float], Probe], start: float) -> list[Probe]:
    """All probes; the highest rate within the bound is found to a factor of STEP ** (1 / 2 ** HALVINGS), 5 %."""
    probes = [probe(start)]
    if probes[0].within:
        while probes[-1].within:
            probes.append(probe(probes[-1].rate * STEP))
    else:
        while not probes[-1].within:
            if probes[-1].rate < 0.01:
                raise SystemExit("the bound is exceeded whatever the rate is")
            probes.append(probe(probes[-1].rate / STEP))
    below, above = sorted(p.rate for p in probes[-2:])
    for _ in range(HALVINGS):
        middle = (below * above) ** 0.5
        probes.append(probe(middle))
        below, above = (middle, above) if probes[-1].within else (below, middle)
    return probes


def best(probes: Sequence[Probe]) -> Probe:
    return max((p for p in probes if p.within), key=lambda p: p.rate)


@contextmanager
def llama_server(program: str, model: str) -> Iterator[str]:
    folder = os.path.dirname(os.path.abspath(program))
    threads = str(len(os.sched_getaffinity(0)))
    flags = ["-m", model, "-t", threads, "-np", str(SLOTS), "-c", str(SLOTS * CONTEXT), "--host", "127.0.0.1"]
    environment = {**os.environ, "LD_LIBRARY_PATH": folder}  # its libraries lie beside it
    with started([program, *flags], "/health", environment, quiet=True) as server:
        yield server.base


@contextmanager
def our_server(form: str, model: str | None) -> Iterator[str]:
    weights, kv = form.split("/")
    flags = [*form_flags(weights, kv), "--max-num-seqs", "64", *(["--model", model] if model else [])]
    with serving(flags) as server:
        yield server.base


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-server", help="llama.cpp's server; without it ours is measured alone")
    parser.add_argument("--llama-model", help="the GGUF file it serves")
    parser.add_argument("--model")
    parser.add_argument("--form", default="int8/int8", help="weights/K/V of ours")
    parser.add_argument("--seconds", type=float, default=60, help="of arrivals in a probe")
    parser.add_argument("--least", type=int, default=96, help="fewest requests of a probe")
    parser.add_argument("--start", type=float, default=4.0, help="the first rate tried on ours")
    parser.add_argument("--out")
    add_line_argument(parser)
    args = parser.parse_args()
    if bool(args.llama_server) != bool(args.llama_model):
        parser.error("--llama-server and --llama-model go together")

    def measure(server: Callable[[], AbstractContextManager[str]], start: float) -> list[Probe]:
        def probe(rate: float) -> Probe:
            with server() as base:  # a new one each time: every play has the same prompts, and servers remember prompts
                play(base, rate, 1)  # code paths are warm afterwards
                return play(base, rate, max(args.least, round(rate * args.seconds)))

        return search(probe, start)

    measured = {"orcaserve": measure(lambda: our_server(args.form, args.model), args.start)}
    if args.llama_server:
        measured["llama-server"] = measure(lambda: llama_server(args.llama_server, args.llama_model), 1.0)

    rows = [
        [name, f"{p.rate:.2f}", f"{p.carried:.2f}", f"{p.normalised_ms:.0f}", "yes" if p.within else "no",
         p.text]
        for name, probes in measured.items()
        for p in sorted(probes, key=lambda p: p.rate)
    ]  # fmt: skip
    carried = {name: best(probes).carried for name, probes in measured.items()}
    ratio = carried["orcaserve"] / carried["llama-server"] if "llama-server" in carried else None
    text = heading("The paper's trace over HTTP", __doc__)
    text += f"Ours {args.form}. Carried at {BOUND_MS:.0f} ms: "
    text += ", ".join(f"{name} {value:.2f} req/s" for name, value in carried.items())
    text += ".\n\n" if ratio is None else f"; ratio {ratio:.2f}, goal {GOAL:g}.\n\n"
    columns = ["server", "offered req/s", "completed req/s", "median normalised ms", "within", "also"]
    write(text + table(columns, rows), args.out)
    theirs = f"{carried['llama-server']:.2f} (llama-server Q4_0)" if ratio else ""
    what = f"the paper's trace over HTTP: req/s at {BOUND_MS:.0f} ms median normalised latency"
    passed = None if ratio is None else ratio >= GOAL
    line = Line(what, f"{GOAL:g} x", f"{carried['orcaserve']:.2f}", theirs, f"{ratio:.2f} x" if ratio else "", passed)
    write_lines([line], args.lines)
    return 1 if passed is False else 0


if __name__ == "__main__":
    raise SystemExit(main())
