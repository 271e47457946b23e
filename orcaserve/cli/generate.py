"""`orcaserve generate`: the text alone on standard output, everything else on standard error."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from orcaserve.cli.grammar_options import add_grammar_arguments, grammar_of
from orcaserve.cli.options import (
    add_model_arguments,
    add_prefix_arguments,
    add_sampling_arguments,
    engine_config,
    print_notes,
    sampling_params,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Continue a prompt. The text goes to standard output as it comes, and nothing else does."
    parser.epilog = 'example: orcaserve generate --prompt "The sea is" --max-tokens 20 --temperature 0'
    add_model_arguments(parser, positional=False)
    parser.add_argument("--prompt", required=True, help="the text to continue; - reads it from standard input")
    add_prefix_arguments(parser)
    add_sampling_arguments(parser, max_tokens=128)
    add_grammar_arguments(parser)


def run(args: argparse.Namespace) -> int:
    params = replace(sampling_params(args), grammar=grammar_of(args))
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    config = engine_config(args)
    print_notes()
    from orcaserve.llm import LLM

    with LLM.from_config(config) as llm:
        for piece in llm.stream(prompt, params):
            sys.stdout.write(piece)
            sys.stdout.flush()
    if sys.stdout.isatty():
        print()
    return 0
