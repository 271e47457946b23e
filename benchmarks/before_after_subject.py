"""One side of before_after.py: the engine of one checkout, which runs what it is told to, line by line.

    python benchmarks/before_after_subject.py CHECKOUT FORM [MODEL]

It uses only what has long been the same in all checkouts.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

MOST_REQUESTS, MOST_TOKENS = 32, 1024


def take_from(checkout: str) -> None:
    """Have orcaserve come from this checkout, which is on the path, also where another one is installed to be edited:
    such an installation is asked before the path is."""

    def is_there() -> bool:
        found = find_spec("orcaserve")
        return found is not None and found.origin is not None and Path(found.origin).is_relative_to(checkout)

    if not is_there():
        sys.meta_path[:] = [each for each in sys.meta_path if "_editable_" not in type(each).__module__]
    if not is_there():
        raise SystemExit(f"there is no orcaserve in {checkout}")


def main() -> None:
    checkout, form, *model = sys.argv[1:]
    take_from(checkout)
    from throughputs import engine_config  # late: it imports orcaserve

    from orcaserve.evaluation.measured_engine import MeasuredEngine

    config = engine_config(model[0] if model else None, form, "int8", MOST_REQUESTS, MOST_TOKENS)
    with MeasuredEngine(config) as engine:
        for line in sys.stdin:
            work = json.loads(line)
            run = engine.run(engine.random_prompts(work["batch"], work["prompt"]), work["gen"])
            prompt = max(run.first_token_seconds)
            print(run.decode_seconds / (work["gen"] - 1) if work["figure"] == "decode" else prompt, flush=True)


if __name__ == "__main__":
    main()
