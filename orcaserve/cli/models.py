"""`orcaserve models`: what is in the cache, fetching, and where a model lies."""

from __future__ import annotations

import argparse

from orcaserve.checkpoint.locate import DEFAULT_MODEL, cached_models, locate_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "List the models in the cache, fetch one, or print where one lies."
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|pull|path")
    actions.add_parser("list", help="the models in the cache: name, size, path")
    for action, text in (("pull", "fetch a model into the cache"), ("path", "print the path of a model in the cache")):
        sub = actions.add_parser(action, help=text)
        sub.add_argument("name", nargs="?", help=f"hub name owner/name[:file.gguf]; default: {DEFAULT_MODEL}")


def run(args: argparse.Namespace) -> int:
    if args.action == "list":
        for name, path, size in cached_models():
            print(f"{name}\t{size / 1e6:.0f} MB\t{path}")
    else:
        print(locate_model(args.name, fetch=args.action == "pull"))
    return 0
