"""Is an integer model that is cut (-pp, -tp) as good as the whole?

    python benchmarks/cut_accuracy.py [--quantization int8 int4] [--cuts 2x1 1x2 2x2 1x3] [--windows N] [--out FILE.md]

Logits of benchmarks/texts/persuasion.txt: the mean KL divergence from float32 and from the whole model in the same
form, in nats per token, how often the likeliest token is theirs, and how far a logit is from the whole model's at most.
Then 50 prompts are continued greedily: how many texts are the whole model's. The exact inputs of a cut model are the
whole model's (tests/worker/test_part_weights.py). Stages alone must give the same bits: exit code 1 if not.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from accuracy_measures import Tally, blocks, log_softmax, windows
from accuracy_subject import load_subject
from cut_subject import load_cut_subject
from report import heading, table, write

from orcaserve.checkpoint.locate import locate_model
from orcaserve.text.tokenizer import Tokenizer

TEXTS = Path(__file__).parent / "texts"
WINDOW = 512
STEPS = 32  # tokens of every greedy text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--quantization", nargs="+", default=["int8", "int4"])
    parser.add_argument("--cuts", nargs="+", default=["2x1", "1x2", "2x2", "1x3"], help="stages x shards")
    parser.add_argument("--windows", type=int, default=4, help="of the text, of 512 tokens each")
    parser.add_argument("--prompts", type=int, help="only so many of the prompts")
    parser.add_argument("--out")
    args = parser.parse_args()

    path = locate_model(args.model)
    tokenizer = Tokenizer.from_path(path)
    text = list(windows(tokenizer.encode((TEXTS / "persuasion.txt").read_text()), WINDOW))[: args.windows]
    prompts = [tokenizer.encode(p) for p in json.loads((TEXTS / "prompts.json").read_text())][: args.prompts]
    n_tokens = max(WINDOW, sum(-(-(len(prompt) + STEPS) // 16) * 16 for prompt in prompts))
    exact = load_subject(path, "float32/float32", n_tokens, 1)
    rows: list[list[object]] = []
    same_bits = True
    for quantization in args.quantization:
        whole = load_subject(path, f"{quantization}/int8", n_tokens, 1)
        texts = whole.greedy(prompts, STEPS)
        for cut in ["1x1", *args.cuts]:
            p, t = map(int, cut.split("x"))
            subject = whole if cut == "1x1" else load_cut_subject(path, quantization, p, t, n_tokens)
            from_exact, from_whole, furthest = Tally(), Tally(), 0.0
            for window in text:
                logits = [one.logits(window).copy() for one in (exact, whole, subject)]
                furthest = max(furthest, float(np.abs(logits[2] - logits[1]).max()))
                for places, targets in blocks(window):
                    reference, base, own = (log_softmax(one[places]) for one in logits)
                    from_exact.add(own, reference, targets)
                    from_whole.add(own, base, targets)
            equal = sum(a == b for a, b in zip(texts, subject.greedy(prompts, STEPS), strict=True))
            n = from_whole.n
            rows.append([quantization, cut, f"{from_exact.kl / n:.5f}", f"{from_exact.same_best / n:.2%}",
                         f"{from_whole.kl / n:.6f}", f"{from_whole.same_best / n:.2%}", f"{furthest:.3g}",
                         f"{equal} of {len(prompts)}"])  # fmt: skip
            same_bits &= t > 1 or (furthest == 0 and equal == len(prompts))
            print(*rows[-1], sep="  ", flush=True)
    columns = ["weights", "stages x shards", "KL from float32", "same best token", "KL from the whole",
               "same best token", "furthest logit", "greedy texts equal"]  # fmt: skip
    n = sum(len(window) - 1 for window in text)
    write(heading("A cut model against the whole", __doc__) + f"{n:,} tokens.\n\n" + table(columns, rows), args.out)
    return 0 if same_bits else 1


if __name__ == "__main__":
    raise SystemExit(main())
