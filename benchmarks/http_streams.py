"""How much of the offline throughput do 32 clients get who stream at once through the real HTTP endpoint?

    python benchmarks/http_streams.py [--form int8/int8] [--streams 32] [--rounds 5] [--out FILE.md]

The same requests (128 random prompt tokens, `--gen` greedy tokens each) run offline in one process and as streams
against `orcaserve serve` in turn, round by round; the ratio is taken within a round and the median of the rounds is the
result. The clients run on the same machine and take their share of it.
"""

from __future__ import annotations

import argparse
import random
import time
from statistics import median

from report import Line, add_line_argument, heading, table, write, write_lines
from server import serving
from stream_client import StreamClient
from throughputs import engine_config, form_flags

from orcaserve import LLM, SamplingParams

GOAL = 0.9
NAME = "measured"  # of the model, for clients
PROMPT = 128


def offline(llm: LLM, prompts: list[list[int]], gen: int) -> float:
    start = time.perf_counter()
    llm.generate(prompts, SamplingParams(max_tokens=gen, ignore_eos=True, temperature=0), progress=False)
    return len(prompts) * gen / (time.perf_counter() - start)


def streams(base: str, prompts: list[list[int]], gen: int) -> float:
    fields = {"max_tokens": gen, "ignore_eos": True, "temperature": 0, "model": NAME}
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    with StreamClient(base, len(prompts)) as client:
        seconds, answers = client.run("/v1/completions", [{"prompt": p, **fields, **streaming} for p in prompts])
    assert all(answer.usage() == gen for answer in answers)
    return len(prompts) * gen / seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--form", default="int8/int8", help="weights/K/V")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--gen", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out")
    add_line_argument(parser)
    args = parser.parse_args()
    rng = random.Random(0)
    rows = []
    weights, kv = args.form.split("/")
    config = engine_config(args.model, weights, kv, args.streams, PROMPT + args.gen)
    flags = [*form_flags(weights, kv), "--n-slots", str(config.kv.n_slots), "--max-num-seqs", str(args.streams)]
    flags += ["--served-model-name", NAME, *(["--model", args.model] if args.model else [])]
    with serving(flags) as server, LLM.from_config(config) as llm:
        for n in range(args.rounds + 1):
            prompts = [[rng.randint(100, 40000) for _ in range(PROMPT)] for _ in range(args.streams)]
            a = offline(llm, prompts, args.gen)
            b = streams(server.base, prompts, args.gen)
            if n:  # the first round warms both up
                rows.append((a, b, b / a))
                print(f"offline {a:.0f} tok/s, HTTP {b:.0f} tok/s, ratio {b / a:.3f}", flush=True)
    columns = ["", "offline tok/s", f"HTTP tok/s, {args.streams} streams", "HTTP / offline"]
    shown = [[f"round {i}", f"{a:.0f}", f"{b:.0f}", f"{r:.3f}"] for i, (a, b, r) in enumerate(rows, 1)]
    middle = [median(column) for column in zip(*rows, strict=True)]
    shown.append(["median", f"{middle[0]:.0f}", f"{middle[1]:.0f}", f"**{middle[2]:.3f}**"])
    write(heading("HTTP against offline", __doc__) + f"{args.form}\n\n" + table(columns, shown), args.out)
    what = f"through the HTTP endpoint, {args.streams} streams, of the offline figure"
    passed = middle[2] >= GOAL
    line = Line(what, f"{GOAL:.0%}", f"{middle[1]:,.0f}", f"{middle[0]:,.0f} (offline)", f"{middle[2]:.0%}", passed)
    write_lines([line], args.lines)
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
