"""Flags that say what the generated text must be."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from orcaserve.core import ConfigError, Grammar


def add_grammar_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("structured output").add_mutually_exclusive_group()
    group.add_argument("--json-schema", type=Path, metavar="FILE", help="JSON that validates against this schema")
    group.add_argument("--regex", metavar="REGEX", help="a text that this regular expression matches as a whole")
    group.add_argument("--choice", action="append", metavar="TEXT", help="one of these texts; give it once for each")
    group.add_argument("--grammar", type=Path, metavar="FILE", help="a text of this grammar, in Lark's notation")


def grammar_of(args: argparse.Namespace) -> Grammar | None:
    """Raises ConfigError for a file that cannot be read, InvalidRequest for what is no grammar."""
    if args.json_schema is not None:
        return Grammar.json_schema(_schema(args.json_schema))
    if args.regex is not None:
        return Grammar.regex(args.regex)
    if args.choice is not None:
        return Grammar.choice(args.choice)
    return None if args.grammar is None else Grammar.lark(_read("--grammar", args.grammar))


def _schema(file: Path) -> dict[str, object]:
    try:
        schema = json.loads(_read("--json-schema", file))
    except (ValueError, RecursionError) as error:
        raise ConfigError("--json-schema", f"{file} is not JSON") from error
    if not isinstance(schema, dict):
        raise ConfigError("--json-schema", f"{file} is not a JSON object")
    return schema


def _read(flag: str, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(flag, f"{file} cannot be read as text") from error
