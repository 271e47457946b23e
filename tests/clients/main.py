"""Runs clients against `orcaserve serve`: see scripts/clients."""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench import Bench
from catalogue import CLIENTS, Client
from document import CLIENTS_MD, document
from environment import CannotInstall, PythonEnvironment
from outcome import Outcome, Step, table
from tokenizer_folder import write_tokenizer

from orcaserve.checkpoint.locate import locate_model, model_name

sys.path.insert(0, str(Path(__file__).parents[1] / "multiprocess"))
from server_process import Serve

NAMES = [client.name for client in CLIENTS]


@dataclass(frozen=True, slots=True)
class Options:
    home: Path
    model: str | None
    vllm: Path | None
    upgrade: bool


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/clients",
        description="Run real clients against `orcaserve serve`, each installed in an environment of its own, and "
        "print what passed. Exit code 1 if anything failed.",
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orcaserve" / "clients"
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these of {', '.join(NAMES)}")
    parser.add_argument("--home", type=Path, default=cache, help="where environments are kept (default: %(default)s)")
    parser.add_argument("--model", help="serve this model to the clients that bring none; default: the server's")
    parser.add_argument("--vllm", type=Path, metavar="FOLDER", help="an environment with vLLM, which is left as it is")
    parser.add_argument("--upgrade", action="store_true", help="install newer releases where there are any")
    parser.add_argument("--write-docs", action="store_true", help="write docs/clients.md from every client's last run")
    args = parser.parse_args(arguments)
    if unknown := [name for name in args.names if name not in NAMES]:
        parser.error(f"no such client: {', '.join(unknown)}; there are {', '.join(NAMES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # servers and tools end with this, as they do with Ctrl-C
    options = Options(args.home.resolve(), args.model, args.vllm and args.vllm.resolve(), args.upgrade)
    outcomes = []
    for client in CLIENTS:
        if not args.names or client.name in args.names:
            print(f"{client.name}: installing and running", file=sys.stderr, flush=True)
            outcomes.append(examine(client, options))
            outcomes[-1].save(options.home / client.name)
    _print(table(outcomes))
    if args.write_docs:
        kept = [(client, Outcome.load(options.home / client.name)) for client in CLIENTS]
        CLIENTS_MD.write_text(document(kept))
    return 1 if any(outcome.failed for outcome in outcomes) else 0


def examine(client: Client, options: Options) -> Outcome:
    """Install a client, and run it against a server of its own."""
    home = options.home / client.name
    work = home / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    today = datetime.date.today().isoformat()
    outcome = Outcome(client.name, "-", today, (), ())
    environment = client.environment(home / "environment")
    if client.name == "vllm" and options.vllm is not None:
        environment = PythonEnvironment(options.vllm, client.module, requirements=())
    try:
        environment.install(options.upgrade)
        outcome = replace(outcome, version=environment.version())
    except CannotInstall as reason:
        return replace(outcome, steps=(Step("not run", f"cannot be installed: {reason}"),))
    if client.checkpoint is not None:
        model = client.checkpoint(work / "tiny")
        name = model.name
    else:
        model, name = locate_model(options.model), model_name(options.model)
        write_tokenizer(model, work / name)
    steps: list[Step] = []
    with _serving(model, name, client.flags, steps) as serve:
        bench = Bench(serve.base, name, work, environment)
        steps += client.run(bench)
    return replace(outcome, commands=tuple(bench.commands), steps=tuple(steps))


@contextmanager
def _serving(model: Path, name: str, flags: Sequence[str], steps: list[Step]) -> Iterator[Serve]:
    """A server, looked at when the client has left. Adds one step, about the server."""
    serve = Serve(str(model), "--port", "0", "--served-model-name", name, *flags)
    code = None
    try:
        known = serve.text(max_tokens=8)
        yield serve
        health = serve.http.get("/health").status_code
        again, reserved = serve.text(max_tokens=8), serve.metric("orcaserve_kv_slots_reserved")
        code = serve.stop()
    finally:
        if code is None:
            serve.process.kill()
            serve.process.wait()
    problems = [
        *([f"/health {health}"] if health != 200 else []),
        *(["a known request has another text"] if again != known else []),
        *([f"{reserved:g} slots still reserved"] if reserved else []),
        *([f"exit code {code}"] if code else []),
        *(["a traceback in its log"] if any("Traceback" in line for line in serve.log) else []),
    ]
    what = "the server afterwards: healthy, a known text unchanged, no slot held"
    steps.append(Step(what, "; ".join(problems) or None))


def _print(rows: Sequence[tuple[str, str, str, str]]) -> None:
    rows = [("client", "version", "what was run", "result"), *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]]))


if __name__ == "__main__":
    sys.exit(main())
