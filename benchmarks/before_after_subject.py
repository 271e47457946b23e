"""One side of before_after.py: the engine of one checkout, which runs what it is told to, line by line.

    python benchmarks/before_after_subject.py CHECKOUT FORM [MODEL]

It uses only what has long been the same in all checkouts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from throughputs import engine_config

import orcaserve
from orcaserve.evaluation.measured_engine import MeasuredEngine

MOST_REQUESTS, MOST_TOKENS = 32, 1024


def main() -> None:
    checkout, form, *model = sys.argv[1:]
    if not Path(orcaserve.__file__).is_relative_to(checkout):
        raise SystemExit(f"{orcaserve.__file__} is not of {checkout}")
    config = engine_config(model[0] if model else None, form, "int8", MOST_REQUESTS, MOST_TOKENS)
    with MeasuredEngine(config) as engine:
        for line in sys.stdin:
            work = json.loads(line)
            run = engine.run(engine.random_prompts(work["batch"], work["prompt"]), work["gen"])
            prompt = max(run.first_token_seconds)
            print(run.decode_seconds / (work["gen"] - 1) if work["figure"] == "decode" else prompt, flush=True)


if __name__ == "__main__":
    main()
