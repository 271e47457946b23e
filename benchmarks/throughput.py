"""How many tokens a second does the engine make, offline?

    python benchmarks/throughput.py --batch 1 8 32 --prompt 128 --gen 32

One JSON object a line: engine, form, batch, prompt and generated tokens, prefill_tok_s (all prompts at once, tokens of
the initiation), decode_tok_s (tokens after the first), load_s. Prompts are random token ids, sampling is greedy and the
end of sequence is ignored, so that any engine measured the same way does the same work. Best of `--repeat` runs.
"""

from __future__ import annotations

import argparse
import json
import random
import time

from orcaserve import LLM, SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--kv-cache-dtype", default="float32")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--gen", type=int, default=32)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    start = time.perf_counter()
    n_slots = max(args.batch) * (args.prompt + args.gen + 32)
    llm = LLM(args.model, dtype=args.dtype, kv_cache_dtype=args.kv_cache_dtype, threads=args.threads,
              max_num_seqs=max(args.batch), n_slots=n_slots)  # fmt: skip
    load = time.perf_counter() - start
    rng = random.Random(0)

    def run(batch: int, tokens: int) -> float:
        prompts = [[rng.randint(100, 40000) for _ in range(args.prompt)] for _ in range(batch)]
        start = time.perf_counter()
        llm.generate(prompts, SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0), progress=False)
        return time.perf_counter() - start

    with llm:
        for batch in args.batch:
            run(batch, 2)
            first = min(run(batch, 1) for _ in range(args.repeat))
            whole = min(run(batch, 1 + args.gen) for _ in range(args.repeat))
            row = {
                "engine": "orcaserve", "form": args.dtype, "batch": batch, "prompt": args.prompt, "gen": args.gen,
                "prefill_tok_s": round(batch * args.prompt / first, 1),
                "decode_tok_s": round(batch * args.gen / (whole - first), 1), "load_s": round(load, 2),
            }  # fmt: skip
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
