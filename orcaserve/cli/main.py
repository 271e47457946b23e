"""`orcaserve VERB ...`. A verb's module is imported only when it is used: `--help` answers at once."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
from typing import NoReturn

from orcaserve.core.errors import ConfigError, InvalidRequest, ModelError, OrcaServeError
from orcaserve.version import __version__

VERBS = {
    "serve": "serve a model over an OpenAI-compatible HTTP API",
    "worker": "run a part of a model that another machine serves",
    "generate": "print the text a model continues a prompt with",
    "chat": "talk to a model in this terminal",
    "run-batch": "answer a file of requests, without a server",
    "models": "list, fetch, find and convert models: models list|pull|path|convert",
    "bench": "measure this machine with a model, or any server: bench throughput|latency|startup|serve",
    "profile": "measure what iterations cost on this machine, for simulations and plans",
    "simulate": "a workload through the scheduler in virtual time, on hardware by its data sheet or a profile",
    "plan": "what a model needs, and the settings that carry the most load within a target",
    "reproduce": "the evaluation of the Orca paper: figures, tables, and a report",
    "explain": "tell one request's life from a schedule log",
    "replay": "run a schedule log through the scheduler again, with other settings",
    "doctor": "facts about this machine and installation, for a bug report",
}

EPILOG = """examples:
  orcaserve serve                                    the default model on http://127.0.0.1:8000
  orcaserve serve path/to/model.gguf --port 9000     any local GGUF file or checkpoint folder
  orcaserve generate --prompt "The sea is" --max-tokens 20
  orcaserve chat

`orcaserve VERB --help` tells more about a verb."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def main(argv: list[str] | None = None) -> int:
    """Run one verb. Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 3 the model cannot be had."""
    args = sys.argv[1:] if argv is None else argv
    if args and args[0] in VERBS:
        verb = importlib.import_module(f"orcaserve.cli.{args[0].replace('-', '_')}")
        parser = Parser(prog=f"orcaserve {args[0]}", formatter_class=argparse.RawDescriptionHelpFormatter)
        verb.add_arguments(parser)
        code = _run(verb, parser.parse_args(args[1:]))
        if args[0] == "worker":
            _leave(code)
        return code
    width = max(map(len, VERBS))
    listing = "\n".join(f"  {name:<{width}}  {text}" for name, text in VERBS.items())
    parser = Parser(
        prog="orcaserve",
        usage="orcaserve VERB ...",
        description="Serve a language model; every iteration is scheduled anew, as in the Orca paper.\n\nverbs:\n"
        + listing,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"orcaserve {__version__}")
    if args and not args[0].startswith("-"):
        parser.error(f"there is no verb {args[0]!r}; the verbs are {', '.join(VERBS)}")
    parser.parse_args(args)
    parser.print_help()
    return 0


def _leave(code: int) -> NoReturn:
    """End without Python's own ending, where threads of gRPC's that outlive their channel were seen to hang."""
    with contextlib.suppress(OSError):  # whoever reads may be gone, a disk may be full
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _run(verb: object, args: argparse.Namespace) -> int:
    # A terminal that cannot show a character shows a question mark instead of ending the program.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        code: int = verb.run(args)  # type: ignore[attr-defined]
        return code
    except OrcaServeError as error:
        print(f"orcaserve: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError | InvalidRequest) else 3 if isinstance(error, ModelError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output left (`orcaserve generate | head`); closing quietly is what it expects.
        sys.stderr.close()
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"orcaserve: {where}{error.strerror or error}", file=sys.stderr)
        return 1
