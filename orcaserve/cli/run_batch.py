"""`orcaserve run-batch`: a file of requests through a model, without a server."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from orcaserve.cli.adapter_options import adapters_config, add_adapter_arguments
from orcaserve.cli.options import add_model_arguments, add_prefix_arguments, engine_config, print_notes
from orcaserve.config import EngineConfig, ServingConfig
from orcaserve.core.errors import ConfigError

MOST_BYTES = 2**62  # the disk is the only limit of the output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Answer a file of requests with a model, many at once. A request is a line of JSON; what it may hold, and\n"
        "what comes of it, is that of the HTTP API: the same code answers both, but nothing listens.\n\n"
        '  {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "NAME",\n'
        '   "messages": [{"role": "user", "content": "Name a whale."}], "max_tokens": 20}}\n\n'
        "custom_id is yours, and different in each line. url is /v1/completions or /v1/chat/completions. NAME is the\n"
        "file's, or what --served-model-name says, or an adapter's. A result is a line too, in the order in which\n"
        "requests end:\n\n"
        '  {"id": "batch_req_...", "custom_id": "1", "response": {"status_code": 200, "request_id": "...",\n'
        '   "body": {...}}, "error": null}\n\n'
        "A request that is wrong has a result with another status_code; the others go on."
    )
    parser.epilog = (
        "examples:\n"
        "  orcaserve run-batch -i in.jsonl -o out.jsonl\n"
        "  orcaserve run-batch -i in.jsonl -o out.jsonl model.gguf --max-num-seqs 32\n"
        "  orcaserve run-batch -i in.jsonl -o out.jsonl --resume      goes on after an interruption\n\n"
        "Exit codes: 0 all requests were answered with status 200, 1 some were not, 2 the input or a setting is\n"
        "wrong, 3 the model cannot be had, 130 interrupted: the results so far are in the output."
    )
    parser.add_argument("-i", "--input-file", type=Path, required=True, metavar="IN", help="the requests, one a line")
    parser.add_argument("-o", "--output-file", type=Path, required=True, metavar="OUT", help="where results go")
    parser.add_argument(
        "--resume", action="store_true", help="OUT has results of an earlier run: add those that are missing"
    )
    parser.add_argument("--strict", action="store_true", help="a field that is unknown or has no effect is an error")
    parser.add_argument("--served-model-name", metavar="NAME", help="what bodies call the model; default: the file's")
    add_model_arguments(parser, positional=True)
    add_prefix_arguments(parser)
    add_adapter_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from orcaserve.serving.batches.lines import LineError, answered_lines, check_lines, read_lines

    source, target = args.input_file, args.output_file
    if not source.is_file():
        raise ConfigError("--input-file", f"{source} is not a file")
    if target.exists() and not args.resume:
        raise ConfigError("--output-file", f"{target} exists: give --resume to go on with it, or another name")
    if target.exists() and target.samefile(source):
        raise ConfigError("--output-file", "is the input")
    total, errors = check_lines(source, None)
    if errors:
        told = "\n".join(f"  line {e.number}: {e.message}" if e.number else f"  {e.message}" for e in errors)
        raise ConfigError("--input-file", f"{source} is no file of requests:\n{told}")
    names = {line.custom_id for line in read_lines(source, None) if not isinstance(line, LineError)}
    done = {name: good for name, good in answered_lines(target).items() if name in names}
    if len(done) >= total:
        print(f"orcaserve: {target} has all {total} results", file=sys.stderr)
        return 0 if all(done.values()) else 1
    config = engine_config(args)
    name = args.served_model_name or config.model.name
    config = replace(config, adapters=adapters_config(args, name))
    print_notes()
    serving = ServingConfig(served_model_name=args.served_model_name, strict=args.strict)
    return asyncio.run(_run(serving, config, source, target, total, done))


async def _run(
    serving: ServingConfig, engine: EngineConfig, source: Path, target: Path, total: int, done: dict[str, bool]
) -> int:
    from tqdm import tqdm

    from orcaserve.core.errors import SERVER_STOPPING
    from orcaserve.serving.app import App
    from orcaserve.serving.batches.lines import Line, LineError, read_lines, result_of
    from orcaserve.serving.batches.runner import lines_at_once, run_lines
    from orcaserve.serving.files.store import Growing, Room, StorageFull
    from orcaserve.serving.hosted import load_service
    from orcaserve.serving.inside import Reply, ask
    from orcaserve.serving.replicas import engines_for

    app, engines = App(serving), engines_for(serving, engine)
    engines.start()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stopped.set)
    n_failed = len(done) - sum(done.values())
    loading, stopping = asyncio.create_task(load_service(serving, engine, engines)), asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            return 130
        app.service = service = await loading
        requests = (
            line for line in read_lines(source, None) if not isinstance(line, LineError) and line.custom_id not in done
        )
        n_at_once = lines_at_once(service.facts, 1, beside_others=False)
        results = Growing(target, Room(MOST_BYTES))
        with contextlib.closing(results), tqdm(total=total, initial=len(done), unit="req") as progress:

            async def tell(line: Line, reply: Reply) -> None:
                nonlocal n_failed
                results.append(result_of(line, reply))
                n_failed += reply.status != 200
                progress.update()

            work = asyncio.create_task(run_lines(requests, partial(ask, app), tell, n_at_once))
            waits = [stopping, asyncio.create_task(engines.closed.wait())]
            await asyncio.wait({work, *waits}, return_when=asyncio.FIRST_COMPLETED)
            for task in (*waits, *(() if work.done() else (work,))):
                task.cancel()
            await asyncio.gather(work, *waits, return_exceptions=True)
            n_told = int(progress.n)
        if not work.cancelled():
            work.result()
    except StorageFull:
        print(f"orcaserve: the disk of {target} is full: make room, and go on with --resume", file=sys.stderr)
        return 1
    finally:
        for task in (loading, stopping):
            task.cancel()
        await asyncio.gather(loading, stopping, return_exceptions=True)
        await engines.close(SERVER_STOPPING)
        await app.close()
    if n_told < total:
        why = "interrupted" if stopped.is_set() else f"there is no engine any more ({engines.reason})"
        print(f"orcaserve: {why}; {target} has {n_told} of {total} results: --resume goes on", file=sys.stderr)
        return 130 if stopped.is_set() else 1
    print(f"orcaserve: {total} results in {target}, {n_failed} of them with another status than 200", file=sys.stderr)
    return 1 if n_failed else 0
