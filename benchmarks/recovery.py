"""Is anything lost when a process is killed while 32 clients stream, and how long do the streams stand still?

    python benchmarks/recovery.py [--rounds 50] [--streams 32] [--gen 48] [--form float32/float32] [-pp P] [-tp T]
                                  [--out FILE.md]

Each round runs the same requests, half of them greedy, half drawn with a seed and penalties, and at a random moment
kills (SIGKILL) a random process of the server but the endpoint: the engine, or one of its workers if the model is cut.
The answers are compared with those of a run that nothing disturbed. A stream stands still from the kill to its first
new token; the last stream of a round counts. A round begins once the engine is five seconds old: the server takes six
that die younger for a reason to end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from report import Line, add_line_argument, heading, table, write, write_lines
from server import serving
from throughputs import form_flags

GOAL_SECONDS = 5.0
NAME = "measured"
PROMPT = 32
AGE = 5.2  # s from a start that may count as a life


@dataclass
class Stream:
    """What a client saw: text, tokens as the server counts them, its end, and when events came."""

    text: str = ""
    n_tokens: int = 0
    done: bool = False
    events: list[float] = field(default_factory=list)

    def same_as(self, other: Stream) -> bool:
        return (self.text, self.n_tokens) == (other.text, other.n_tokens)

    def stood_still(self, killed: float) -> float | None:
        """Seconds from the kill to the next event, if it was under way. What was on its way already came at once."""
        after = [moment - killed for moment in self.events if moment > killed]
        gaps = [b - a for a, b in zip([0.0, *after], after, strict=False)]
        return after[gaps.index(max(gaps))] if gaps else None


async def stream(base: str, body: dict[str, Any]) -> Stream:
    host, _, port = base.removeprefix("http://").rpartition(":")
    seen = Stream()
    reader, writer = await asyncio.open_connection(host, int(port))
    raw = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\nconnection: close\r\n"
    writer.write(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
    while line := await reader.readline():
        if not line.startswith(b"data: "):
            continue  # headers, the sizes of chunks, comments
        seen.events.append(time.perf_counter())
        if line == b"data: [DONE]\n":
            seen.done = True
            continue
        event = json.loads(line[6:])
        seen.text += "".join(choice["text"] for choice in event.get("choices", ()))
        if event.get("usage"):
            seen.n_tokens = event["usage"]["completion_tokens"]
    writer.close()
    return seen


async def run_round(base: str, bodies: Sequence[dict[str, Any]], kill: tuple[float, int] | None) -> list[Stream]:
    """All streams at once; kill: seconds from now, and whom. The moment of the kill becomes the zero of events."""
    streams = [asyncio.create_task(stream(base, body)) for body in bodies]
    killed = 0.0
    if kill is not None:
        seconds, pid = kill
        await asyncio.sleep(seconds)
        killed = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
    seen = await asyncio.gather(*streams)
    for each in seen:
        each.events = [moment - killed for moment in each.events]
    return seen


def requests(n: int, gen: int, rng: random.Random) -> list[dict[str, Any]]:
    drawn = {"temperature": 1.0, "top_p": 0.95, "presence_penalty": 0.3, "frequency_penalty": 0.2}
    fields = {"max_tokens": gen, "ignore_eos": True, "model": NAME, "stream": True}
    return [
        {
            "prompt": [rng.randint(100, 40000) for _ in range(PROMPT)],
            "stream_options": {"include_usage": True},
            **fields,
            **(drawn | {"repetition_penalty": 1.1, "seed": i} if i % 2 else {"temperature": 0}),
        }
        for i in range(n)
    ]


def descendants(pid: int) -> list[int]:
    """Processes below this one."""
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return children + [below for child in children for below in descendants(child)]


def wait_until_ready(base: str) -> None:
    while httpx.get(f"{base}/ready").status_code != 200:
        time.sleep(0.05)


@dataclass
class Round:
    lost: int  # streams without their end
    differing: int  # texts
    tokens: int  # too many or too few
    still: float | None  # s until the last stream moved again


def measure(base: str, server: int, bodies: list[dict[str, Any]], n_rounds: int, rng: random.Random) -> list[Round]:
    asyncio.run(run_round(base, bodies, None))  # warms up
    start = time.perf_counter()
    expected = asyncio.run(run_round(base, bodies, None))
    took = time.perf_counter() - start
    rounds = []
    for n in range(n_rounds):
        wait_until_ready(base)
        time.sleep(AGE)
        kill = rng.uniform(0, took), rng.choice(descendants(server))
        seen = asyncio.run(run_round(base, bodies, kill))
        still = [seconds for each in seen if (seconds := each.stood_still(0.0)) is not None]
        rounds.append(
            Round(
                sum(not each.done for each in seen),
                sum(not each.same_as(other) for each, other in zip(seen, expected, strict=True)),
                sum(abs(each.n_tokens - other.n_tokens) for each, other in zip(seen, expected, strict=True)),
                max(still, default=None),
            )
        )
        print(f"round {n + 1}: killed after {kill[0]:.2f} s of {took:.2f}, {rounds[-1]}", flush=True)
    return rounds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--form", default="float32/float32", help="weights/K/V")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--gen", type=int, default=48)
    parser.add_argument("-pp", "--pipeline-parallel-size", type=int, default=1)
    parser.add_argument("-tp", "--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out")
    add_line_argument(parser)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    bodies = requests(args.streams, args.gen, rng)
    flags = [*form_flags(*args.form.split("/")), "--n-slots", "8192", "--max-num-seqs", str(args.streams)]
    cut = args.pipeline_parallel_size, args.tensor_parallel_size
    flags += ["-pp", str(cut[0]), "-tp", str(cut[1])]
    flags += ["--served-model-name", NAME, *(["--model", args.model] if args.model else [])]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        os.environ["TMPDIR"] = folder  # of the server, which must leave nothing in it
        with serving(flags) as server:
            rounds = measure(server.base, server.process.pid, bodies, args.rounds, rng)
            last = descendants(server.process.pid)
        left = [f"/proc/{pid}" for pid in last if Path(f"/proc/{pid}").exists()] + os.listdir(folder)
    lost, differing, tokens = (sum(getattr(r, name) for r in rounds) for name in ("lost", "differing", "tokens"))
    still = [r.still for r in rounds if r.still is not None]
    columns = ["rounds", "streams", "requests lost", "texts that differ", "tokens repeated or missing",
               "s until all streams move again, median", "most", "processes and files left"]  # fmt: skip
    row = [len(rounds), len(rounds) * args.streams, lost, differing, tokens,
           f"{median(still):.2f}" if still else "", f"{max(still):.2f}" if still else "", len(left)]  # fmt: skip
    write(
        heading("Recovery", __doc__) + f"{args.form}, {cut[0]} stages x {cut[1]} shards\n\n" + table(columns, [row]),
        args.out,
    )
    whole = not (lost or differing or tokens or left)
    quick = not still or max(still) <= GOAL_SECONDS
    lines = [
        Line("requests lost, texts changed, by kill -9", "0", f"{lost}, {differing}", "", "", whole),
        Line("streams move again", f"{GOAL_SECONDS:g} s", f"{max(still, default=0):.2f} s", "", "", quick),
    ]
    write_lines(lines, args.lines)
    return 0 if whole and quick else 1


if __name__ == "__main__":
    raise SystemExit(main())
