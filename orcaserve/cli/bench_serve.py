"""`orcaserve bench serve`: load on a running server, ours or another that speaks OpenAI's API."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from shutil import get_terminal_size
from statistics import median
from typing import TYPE_CHECKING, Any, TextIO

from orcaserve.cli.workload_options import add_workload_arguments, workload
from orcaserve.core.errors import ConfigError
from orcaserve.evaluation.targets import EXAMPLES, Metric, Target, parse_target
from orcaserve.process import allow_many_files
from orcaserve.version import __version__
from orcaserve.workload.arrival import Arrival

if TYPE_CHECKING:
    from orcaserve.evaluation.load.generator import Load

LOOK = 0.25  # s between two looks at how it goes
RECENT = 50  # requests whose median is shown meanwhile
OURS = {"stream", "prompt", "messages", "max_tokens"}  # fields that --extra-body may not change
RECORDED_FLAGS = (
    "base_url", "endpoint", "workload", "n", "rate", "burstiness", "concurrency", "seed", "max_input", "max_output",
    "scale_lengths", "timeout", "extra_body",
)  # fmt: skip

DESCRIPTION = """Put load on a server over HTTP and say how long its clients wait.

Requests arrive at their times whether or not earlier ones are done (an open loop), as a public's do; or --concurrency C
clients each send their next one when the last is over (a closed loop), which measures throughput but hides waiting.

  ttft        from sending a request to its first piece of text
  itl         between two pieces of text of a request
  e2e         from sending a request to the end of its answer
  normalized  e2e / generated tokens: the Orca paper's measure

Greedy, and no request ends before its length (ignore_eos). Each has a prompt of its own, so that nobody's prefix cache
helps. A quantile is over all requests that are whole; what failed is counted and named."""
EPILOG = """examples:
  orcaserve serve &
  orcaserve bench serve --rate 4 --n 200                       the paper's trace on http://127.0.0.1:8000
  orcaserve bench serve --rate 4 --target "p50_normalized<=190ms" --target "ttft_p99<=2s"
  orcaserve bench serve --concurrency 32 --workload homogeneous:128:128 --n 128
  orcaserve bench serve http://10.0.0.7:8080 --endpoint chat --workload azure-conv --max-input 1024 --rate 2
  orcaserve bench serve --workload mine.csv --burstiness 0.5 --rate 3 --json result.json --rows requests.jsonl

With --rate, look for the highest at which the targets are still met. A run shorter than a minute or two says little
about a rate near the server's limit, because a queue takes time to grow."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("base_url", nargs="?", default="http://127.0.0.1:8000", metavar="BASE_URL",
                        help="the server, http://HOST:PORT (default: %(default)s)")  # fmt: skip
    parser.add_argument("--endpoint", choices=("completions", "chat"), default="completions",
                        help="/v1/completions or /v1/chat/completions (default: %(default)s)")  # fmt: skip
    parser.add_argument("--model", metavar="NAME", help="as the server calls it (default: the first that it lists)")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY"), metavar="KEY",
                        help="sent as bearer token (default: $OPENAI_API_KEY)")  # fmt: skip
    parser.add_argument("--concurrency", type=int, metavar="C", help="a closed loop of so many clients")
    parser.add_argument("--prompts", choices=("auto", "ids", "text"), default="auto",
                        help="ids: token ids, exactly as many as wanted, if the server takes them; text: words, as "
                        "many as make that number of tokens by the server's count; auto: ids, else text "
                        "(default: %(default)s)")  # fmt: skip
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS",
                        help="a request without an end for so long has failed (default: %(default)g)")  # fmt: skip
    parser.add_argument("--extra-body", type=_object, default={}, metavar="JSON",
                        help="fields for every request, in place of ours: '{\"temperature\": 1}'; null leaves one out, "
                        "as '{\"ignore_eos\": null}' for servers that do not know it")  # fmt: skip
    parser.add_argument("--target", action="append", default=[], metavar="TARGET",
                        help=f"such as {EXAMPLES}; may be given several times")  # fmt: skip
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE",
                        help="the result as one JSON object, on standard output or in a file")  # fmt: skip
    parser.add_argument(
        "--rows", type=Path, metavar="FILE", help="every request as a line of JSON, with the time of each token"
    )
    add_workload_arguments(parser, n=100)


def run(args: argparse.Namespace) -> int:
    """Exit code 0 if at least one request was answered in full, 130 after Ctrl-C, else 1."""
    targets = [parse_target(text) for text in args.target]
    if args.concurrency is not None and args.concurrency < 1:
        raise ConfigError("--concurrency", "takes 1 or more clients")
    if args.concurrency is not None and (args.rate is not None or args.burstiness is not None):
        raise ConfigError("--concurrency", "goes with neither --rate nor --burstiness: the answers set the pace")
    if not 0 < args.timeout < 1e9:
        raise ConfigError("--timeout", "takes a number of seconds above 0")
    arrivals = workload(args).arrivals(args.rate, args.seed)
    with ExitStack() as files:  # opened now, so that a wrong name does not cost a run
        rows, result = (files.enter_context(open(path, "w")) if path not in (None, "-") else None
                        for path in (args.rows, args.json))  # fmt: skip
        return _in_loop(_measure(args, arrivals, targets, rows, result))


async def _measure(
    args: argparse.Namespace,
    arrivals: Sequence[Arrival],
    targets: Sequence[Target],
    rows_file: TextIO | None,
    json_file: TextIO | None,
) -> int:
    from orcaserve.evaluation.load.generator import Generator
    from orcaserve.evaluation.load.prompts import choose_prompts
    from orcaserve.evaluation.load.server import Address, Server
    from orcaserve.evaluation.load.summary import lines, row, summarise

    allow_many_files()  # each request has a connection, and a server may be slow
    server = Server(await Address.find(args.base_url), args.endpoint, args.api_key, args.timeout)
    model = args.model or await server.first_model()
    base = _merged({"model": model, "temperature": 0, "ignore_eos": True}, args.extra_body)
    prompts = await choose_prompts(server, base, args.endpoint == "chat", args.prompts)
    streaming = _merged({**base, "stream": True, "stream_options": {"include_usage": True}}, args.extra_body)
    generator = Generator(server, prompts, streaming, args.seed, len(arrivals))
    if args.concurrency is None:
        running = generator.open_loop(arrivals)
    else:
        running = generator.closed_loop(arrivals, args.concurrency)
    interrupted = await _until_over(running, generator.load)
    summary = summarise(generator.load, targets)
    if rows_file:
        rows_file.writelines(json.dumps(row(record)) + "\n" for record in generator.load.records)
    flags = {name: getattr(args, name) for name in RECORDED_FLAGS}
    run = {"version": __version__, "model": model, "prompts": prompts.how, "interrupted": interrupted, **flags}
    result = json.dumps({"run": run, **summary.as_json()}, indent=1)
    if args.json == "-":
        print(result)
    else:
        print(f"prompts     {prompts.how}", *lines(summary), sep="\n")
        if json_file:
            json_file.write(result + "\n")
    if interrupted:
        print("orcaserve: interrupted; this is what was measured until then", file=sys.stderr)
        return 130
    return 0 if summary.whole else 1


def _merged(fields: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**fields, **extra}.items() if value is not None}


async def _until_over(running: Coroutine[Any, Any, None], load: Load) -> bool:
    """Run it, and show how it goes if somebody looks. True if Ctrl-C or SIGTERM ended it early."""
    task = asyncio.create_task(running)
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, task.cancel)
    looks = asyncio.create_task(_show(load)) if sys.stderr.isatty() else None
    try:
        await task
    except asyncio.CancelledError:
        return True
    finally:
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(signum)
        if looks is not None:
            looks.cancel()
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return False


async def _show(load: Load) -> None:
    """One line on the terminal, over and over."""
    started = before = time.monotonic()
    events = 0
    while True:
        await asyncio.sleep(LOOK)
        now = time.monotonic()
        rate = (load.n_events - events) / (now - before)
        before, events = now, load.n_events
        recent = [value for record in load.records[-RECENT:] if record.whole
                  for value in record.latencies(Metric.NORMALIZED)]  # fmt: skip
        waits = f", {median(recent) * 1e3:.0f} ms a token" if recent else ""
        failed = f", {load.n_failed} FAILED" if load.n_failed else ""
        text = f"{now - started:.0f} s: {len(load.records)} of {load.n_wanted} sent, {load.n_running} running, "
        text += f"{load.n_over} over{failed}, {rate:.0f} events/s{waits}"
        print(f"\r\x1b[K{text[: get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)


def _in_loop(main: Coroutine[Any, Any, int]) -> int:
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with suppress(ImportError):
        from uvloop import new_event_loop

        factory = new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or value.keys() & OURS:
        raise argparse.ArgumentTypeError(f"takes a JSON object without {', '.join(sorted(OURS))}")
    return value
