"""What do bounded iterations do to those who stream, while long prompts come?

Eight requests stream without end, and a prompt of 1,500 tokens comes once a second. Each setting serves this for some
seconds, on an engine in this process. The gaps are those between two tokens of one stream as the loop reports them; the
throughput is of all tokens, input and output; `first` is the median time of a long prompt's first token.

    python benchmarks/bounded_iterations.py [--seconds 20] [--every 1.0] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from queue import Empty, SimpleQueue
from statistics import median

from orcaserve.checkpoint.locate import locate_model, model_name
from orcaserve.config import EngineConfig, KVConfig, ModelConfig, SchedulerConfig
from orcaserve.core import IterationReport, Request, SamplingParams
from orcaserve.engine.host import EngineHost

N_STREAMS, PROMPT = 8, 1500
SHORT = 32  # tokens of a stream's prompt, and of what is generated after a long one
SETTINGS = {
    "plain": SchedulerConfig(32),
    "512 tokens": SchedulerConfig(32, max_num_batched_tokens=512),
    "128 tokens": SchedulerConfig(32, max_num_batched_tokens=128),
    "target 50 ms": SchedulerConfig(32, target_itl=0.05),
}


@dataclass(frozen=True)
class Row:
    setting: str
    gap_p50_ms: float
    gap_p99_ms: float
    tokens_s: float
    first_s: float
    n_prompts: int


def measure(name: str, settings: SchedulerConfig, model: str | None, seconds: float, every: float) -> Row:
    news: SimpleQueue[tuple[float, IterationReport]] = SimpleQueue()
    config = EngineConfig(ModelConfig(locate_model(model), model_name(model)), KVConfig(n_slots=32768), settings)
    host = EngineHost.load(config, lambda report: news.put((time.perf_counter(), report)))
    rng = random.Random(1)

    def new(number: int, n_input: int, n_output: int) -> Request:
        prompt = [rng.randrange(1000, 40000) for _ in range(n_input)]
        return Request(number, prompt, SamplingParams(max_tokens=n_output, ignore_eos=True, temperature=0.0))

    try:
        host.submit([new(i, SHORT, 1500) for i in range(N_STREAMS)])
        began = time.perf_counter() + 3.0  # the first seconds do not count: caches, and what is learnt
        submitted: dict[int, float] = {}
        tokens: dict[int, list[float]] = defaultdict(list)
        due, number = began - 2.0, 1000
        while (now := time.perf_counter()) < began + seconds:
            if now >= due:
                due += every
                number += 1
                submitted[number] = now
                host.submit([new(number, PROMPT, SHORT)])
            try:
                at, report = news.get(timeout=max(min(due - now, 0.05), 0.001))
            except Empty:
                continue
            for each in report.progress:
                if each.token is not None:
                    tokens[each.request_id].append(at)
                if each.finish_reason is not None and each.request_id < N_STREAMS:
                    raise SystemExit("a stream has ended before the time: give fewer --seconds")
    finally:
        host.close()
    end = began + seconds
    gaps = [
        b - a
        for stream in range(N_STREAMS)
        for a, b in zip(tokens[stream], tokens[stream][1:], strict=False)
        if began <= b < end
    ]
    firsts = [tokens[i][0] - at for i, at in submitted.items() if tokens[i] and began <= tokens[i][0] < end]
    n_output = sum(began <= at < end for times in tokens.values() for at in times)
    if len(gaps) < 100 or not firsts:
        raise SystemExit(f"{name}: {len(gaps)} gaps and {len(firsts)} prompts: too few; give more --seconds or --every")
    gaps.sort()
    return Row(
        name,
        round(median(gaps) * 1e3, 1),
        round(gaps[len(gaps) * 99 // 100] * 1e3, 1),
        round((n_output + PROMPT * len(firsts)) / seconds, 1),
        round(median(firsts), 3),
        len(firsts),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Gaps between tokens while long prompts come.")
    parser.add_argument("-m", "--model", help="default: the default model")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured of each setting (default: %(default)s)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two prompts (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    args = parser.parse_args()
    rows = [measure(name, each, args.model, args.seconds, args.every) for name, each in SETTINGS.items()]
    if args.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    print("| setting | gap p50 ms | gap p99 ms | tokens/s | first token s | prompts |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        gaps = f"{row.gap_p50_ms} | {row.gap_p99_ms}"
        print(f"| {row.setting} | {gaps} | {row.tokens_s} | {row.first_s} | {row.n_prompts} |")


if __name__ == "__main__":
    main()
