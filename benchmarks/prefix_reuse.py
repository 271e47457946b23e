"""What do conversations with the same system prompt gain from prefix reuse?

Two real servers with the same settings, one of them with --no-enable-prefix-caching, answer the same conversations in
turns: all of them ask at once, and each again with the answer so far as soon as it is through. Texts are new in every
round, so that nothing is found from the round before; the other server sleeps meanwhile. Time to first token counts
from a conversation's second request on, and for all requests but the first conversation's first.

    python benchmarks/prefix_reuse.py [--conversations 16] [--turns 3] [--system 1000] [--question 40] [--gen 64]
                                      [--rounds 3] [--model MODEL] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import httpx
import report
from server import Server, serving

TTFT_GOAL, THROUGHPUT_GOAL = 5.0, 2.0


@dataclass
class Round:
    """first: seconds to the first token of every request, by turn."""

    seconds: float = 0.0
    n_output: int = 0
    n_prompt: int = 0
    n_cached: int = 0
    first: dict[int, list[float]] = field(default_factory=dict)

    @property
    def later(self) -> list[float]:
        """Of all requests from a conversation's second on."""
        return [seconds for turn, each in self.first.items() if turn > 0 for seconds in each]

    @property
    def tokens_per_second(self) -> float:
        return self.n_output / self.seconds


async def ask(client: httpx.AsyncClient, model: str, ids: list[int], n: int, turn: int, into: Round) -> list[int]:
    """One request, streamed; the ids of its answer."""
    body = {
        "model": model,
        "prompt": ids,
        "max_tokens": n,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }
    started, first = time.perf_counter(), 0.0
    answer: list[int] = []
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            raise SystemExit((await response.aread()).decode())
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if event["choices"]:
                first = first or time.perf_counter() - started
                answer += event["choices"][0].get("token_ids") or []
            if event.get("usage"):
                into.n_prompt += event["usage"]["prompt_tokens"]
                into.n_cached += event["usage"]["prompt_tokens_details"]["cached_tokens"]
    if len(answer) != n:
        raise SystemExit(f"an answer of {len(answer)} tokens, not {n}")
    into.first.setdefault(turn, []).append(first)
    into.n_output += n
    return answer


async def converse(
    client: httpx.AsyncClient, model: str, system: list[int], questions: Sequence[list[int]], n: int, into: Round
) -> None:
    ids = list(system)
    for turn, question in enumerate(questions):
        ids += question
        ids += await ask(client, model, ids, n, turn, into)


async def one_round(server: Server, model: str, args: argparse.Namespace, seed: int, n_conversations: int) -> Round:
    rng = random.Random(seed)
    system = [rng.randrange(100, 40000) for _ in range(args.system)]
    texts = [
        [[rng.randrange(100, 40000) for _ in range(args.question)] for _ in range(args.turns)]
        for _ in range(n_conversations)
    ]
    found = Round()
    async with httpx.AsyncClient(base_url=server.base, timeout=None) as client:
        started = time.perf_counter()
        await asyncio.gather(*(converse(client, model, system, each, args.gen, found) for each in texts))
        found.seconds = time.perf_counter() - started
    return found


def measure(args: argparse.Namespace) -> dict[str, list[Round]]:
    longest = args.system + args.turns * (args.question + args.gen)
    flags = [
        "--max-num-seqs",
        str(args.conversations),
        "--n-slots",
        str((args.conversations * longest // 16 + 64) * 16),
    ]
    if args.model:
        flags += ["--model", args.model]
    rounds: dict[str, list[Round]] = {"with": [], "without": []}
    with ExitStack() as stack:
        servers = {}
        for name, own in (("with", []), ("without", ["--no-enable-prefix-caching"])):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            servers[name] = stack.enter_context(serving([*flags, *own, "--files-dir", folder]))
        models = {
            name: httpx.get(f"{server.base}/v1/models").json()["data"][0]["id"] for name, server in servers.items()
        }
        for number in range(-1, args.rounds):  # the first one warms up
            order = list(servers) if number % 2 else list(reversed(servers))
            for name in order:
                n = args.conversations if number >= 0 else 1
                found = asyncio.run(one_round(servers[name], models[name], args, 100 + number, n))
                if number >= 0:
                    rounds[name].append(found)
    return rounds


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Conversations with a shared system prompt, with prefix reuse and without."
    )
    parser.add_argument("--model", default=None)
    parser.add_argument("--conversations", type=int, default=16)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--system", type=int, default=1000)
    parser.add_argument("--question", type=int, default=40)
    parser.add_argument("--gen", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", metavar="FILE")
    args = parser.parse_args()
    rounds = measure(args)
    rows = []
    for name, each in rounds.items():
        first = statistics.median(statistics.median(found.first[0]) for found in each)
        later = statistics.median(statistics.median(found.later) for found in each)
        speed = statistics.median(found.tokens_per_second for found in each)
        share = sum(found.n_cached for found in each) / sum(found.n_prompt for found in each)
        rows.append((name, first, later, speed, share))
    gains = [
        (
            statistics.median(without.later) / statistics.median(found.later),
            found.tokens_per_second / without.tokens_per_second,
        )
        for found, without in zip(rounds["with"], rounds["without"], strict=True)
    ]
    sooner, faster = (statistics.median(column) for column in zip(*gains, strict=True))
    passed = sooner >= TTFT_GOAL and faster >= THROUGHPUT_GOAL
    report.write(
        report.heading("Prefix reuse", __doc__)
        + f"{args.conversations} conversations of {args.turns} turns, all at once: a system prompt of {args.system} "
        f"tokens, questions of {args.question}, answers of {args.gen}; {args.rounds} rounds, medians\n\n"
        + report.table(
            ["prefix reuse", "first turn, s to first token", "later turns, s to first token", "tokens/s", "found"],
            [
                [name, f"{first:.3f}", f"{later:.3f}", f"{speed:.1f}", f"{share:.0%}"]
                for name, first, later, speed, share in rows
            ],
        )
        + f"\nFirst tokens of later turns come {sooner:.1f} x sooner (goal: {TTFT_GOAL:g} x), "
        f"the whole run has {faster:.2f} x the tokens/s (goal: {THROUGHPUT_GOAL:g} x): {report.mark(passed)}\n",
        args.out,
    )
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
