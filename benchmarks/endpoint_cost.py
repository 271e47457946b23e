"""What does everything beside the model cost: the endpoint, a client, and the engine process around its worker?

    python benchmarks/endpoint_cost.py [--cases 1:2.5 32:9] [--tokens 100] [--rounds 10] [--detail] [--out FILE.md]

The endpoint, the engine process, its loop and its scheduler are the real ones, but the worker has no model: an
iteration takes a given time and leaves the cores alone, so that what is used is the cost of all the rest. A case is
REQUESTS:MILLISECONDS. CPU time is the kernel's count; each figure is the best of the rounds, since a neighbour can
only add to it.

Through HTTP, each request is an event stream. Offline it is one of `LLM.generate`; `idle` is how long the worker waits
for its next batch (median). With an iteration of no time the iterations/s show what loop, executor and caller can do.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import stand_in_engine
from report import heading, table, write
from server import started
from stream_client import StreamClient

from orcaserve import LLM, SamplingParams
from orcaserve.checkpoint.locate import locate_model
from orcaserve.config import EngineConfig, ModelConfig, SchedulerConfig, ServingConfig

HERE = Path(__file__).parent
NAME = "stand-in"
PROMPT = 16  # tokens
Threads = dict[str, float]  # name -> seconds of CPU time


@dataclass(frozen=True, slots=True)
class Case:
    requests: int
    milliseconds: str

    @classmethod
    def parse(cls, text: str) -> Case:
        requests, _, milliseconds = text.partition(":")
        return cls(int(requests), milliseconds)


def engine_config() -> EngineConfig:
    return EngineConfig(ModelConfig(locate_model(None), NAME), scheduler=SchedulerConfig(128))


def serve(port: int) -> int:
    """The endpoint, in this process; its engine has a stand-in for a worker."""
    from orcaserve.serving import launcher
    from orcaserve.serving.endpoint import run_endpoint

    launcher.ENGINE_MODULE = "stand_in_engine"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return run_endpoint(ServingConfig(port=port, log_level="warning"), engine_config())


def cpu_time(pid: int) -> Threads:
    seconds: Threads = defaultdict(float)
    for task in Path(f"/proc/{pid}/task").iterdir():
        seconds[(task / "comm").read_text().strip()] += int((task / "schedstat").read_text().split()[0]) / 1e9
    return seconds


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


@dataclass(frozen=True, slots=True)
class Round:
    """tokens/s, and microseconds of CPU time for each token by thread: endpoint, engine, client."""

    speed: float
    costs: Sequence[Threads]


def through_http(case: Case, tokens: int, rounds: int) -> list[Round]:
    rng = random.Random(0)
    fields = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0, "model": NAME}
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    n = case.requests * tokens
    done = []
    environment = {**os.environ, "STAND_IN": case.milliseconds}
    with (
        started([sys.executable, __file__, "--serve"], "/ready", environment) as server,
        StreamClient(server.base, case.requests) as client,
    ):
        endpoint = server.process.pid
        engine = child_of(endpoint)
        for _ in range(rounds + 1):
            prompts = [[rng.randint(100, 40000) for _ in range(PROMPT)] for _ in range(case.requests)]
            bodies = [{"prompt": prompt, **fields, **streaming} for prompt in prompts]
            before = cpu_time(endpoint), cpu_time(engine), {"client": time.process_time()}
            seconds, answers = client.run("/v1/completions", bodies)
            after = cpu_time(endpoint), cpu_time(engine), {"client": time.process_time()}
            assert all(answer.usage() == tokens for answer in answers)
            costs = [
                {name: (b[name] - a.get(name, 0.0)) / n * 1e6 for name in b} for a, b in zip(before, after, strict=True)
            ]
            done.append(Round(n / seconds, costs))
    return done[1:]  # the first warms up


def offline(case: Case, tokens: int, rounds: int) -> tuple[float, float]:
    """Iterations/s, and microseconds the worker waits for its next batch."""
    os.environ["STAND_IN"] = case.milliseconds
    taken = stand_in_engine.install()
    prompts = [[7] * PROMPT] * case.requests
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0)
    speeds, idle = [], []
    with LLM.from_config(engine_config()) as llm:
        for _ in range(rounds + 1):
            taken[0].idle.clear()
            start = time.perf_counter()
            llm.generate(prompts, params, progress=False)
            speeds.append(tokens / (time.perf_counter() - start))
            idle.append(median(taken[0].idle[1:]) * 1e6)
    return max(speeds[1:]), min(idle[1:])


def http_row(case: Case, done: Sequence[Round], detail: bool) -> list[object]:
    costs = [min(sum(round.costs[i].values()) for round in done) for i in range(3)]
    if detail:
        for who, threads in zip(("endpoint", "engine"), done[-1].costs, strict=False):
            print(case, who, {name: round(us, 1) for name, us in threads.items() if us >= 0.1})
    speed = max(round.speed for round in done)
    shown = [f"{speed:.0f}", f"{speed / case.requests:.0f}", *(f"{us:.1f}" for us in costs)]
    return [case.requests, case.milliseconds, *shown, f"{sum(costs) * case.requests:.0f}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["1:2.5", "8:4", "32:9"])
    parser.add_argument("--tokens", type=int, default=100, help="of each request")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--detail", action="store_true", help="print what each thread took in the last round")
    parser.add_argument("--out")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args.port)
    cases = [Case.parse(text) for text in args.cases]
    columns = ["requests", "ms an iteration", "tokens/s", "iterations/s", "endpoint us/token", "engine us/token",
               "client us/token", "all, us/iteration"]  # fmt: skip
    text = heading("Everything beside the model", __doc__)
    text += "Event streams through HTTP; CPU time:\n\n" + table(
        columns, [http_row(case, through_http(case, args.tokens, args.rounds), args.detail) for case in cases]
    )
    rows = []
    for case in (*cases, *(Case(case.requests, "0") for case in cases)):
        speed, idle = offline(case, args.tokens if float(case.milliseconds) else 10 * args.tokens, args.rounds)
        rows.append([case.requests, case.milliseconds, f"{speed:.0f}", f"{idle:.0f}"])
    text += "\nOffline:\n\n" + table(["requests", "ms an iteration", "iterations/s", "idle us"], rows)
    write(text, args.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
