"""`orcaserve chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from orcaserve.cli.options import (
    add_model_arguments,
    add_prefix_arguments,
    add_sampling_arguments,
    engine_config,
    print_notes,
    sampling_params,
)
from orcaserve.core.errors import InvalidRequest

if TYPE_CHECKING:
    from orcaserve.core import SamplingParams
    from orcaserve.llm import LLM

HELP = "/reset forgets the conversation, /quit or Ctrl-D leaves, Ctrl-C stops an answer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Talk to a model in this terminal."
    parser.epilog = HELP
    add_model_arguments(parser, positional=True)
    parser.add_argument("--system", help="a system message to begin with")
    add_prefix_arguments(parser)
    add_sampling_arguments(parser, max_tokens=512)


def run(args: argparse.Namespace) -> int:
    params = sampling_params(args)
    config = engine_config(args)
    print_notes()
    from orcaserve.llm import LLM

    opening = [{"role": "system", "content": args.system}] if args.system else []
    print(f"loading {config.model.name} ...", file=sys.stderr)
    with LLM.from_config(config) as llm:
        print(HELP, file=sys.stderr)
        messages = list(opening)
        while (line := _ask()) is not None:
            if line == "/quit":
                break
            if line == "/reset":
                messages = list(opening)
            elif line:
                question = {"role": "user", "content": line}
                said = _answer(llm, [*messages, question], params)
                if said is not None:  # a turn that was refused is not part of the conversation
                    messages += [question, {"role": "assistant", "content": said}]
    return 0


def _ask() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None


def _answer(llm: LLM, messages: list[dict[str, str]], params: SamplingParams) -> str | None:
    """Print the answer as it comes; Ctrl-C cuts it short. Returns what was said, or None if it was refused."""
    said = ""
    try:
        for piece in llm.stream_chat(messages, params):
            said += piece
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        pass
    except InvalidRequest as error:
        print(f"orcaserve: {error}", file=sys.stderr)
        return None
    print()
    return said
