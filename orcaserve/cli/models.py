"""`orcaserve models`: what is in the cache, fetching, where a model lies, and converting one for quicker starts."""

from __future__ import annotations

import argparse
from pathlib import Path

from orcaserve.checkpoint.locate import DEFAULT_MODEL, cached_models, locate_model
from orcaserve.config import DTYPES, QUANTIZATIONS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "List the models in the cache, fetch one, print where one lies, or convert one."
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|pull|path|convert")
    listing = actions.add_parser("list", help="the models in the cache: name, size, path; --supported: all families")
    listing.add_argument("--supported", action="store_true", help="the families of models that can be served instead")
    for action, text in (("pull", "fetch a model into the cache"), ("path", "print the path of a model in the cache")):
        sub = actions.add_parser(action, help=text)
        sub.add_argument("name", nargs="?", help=f"hub name owner/name[:file.gguf]; default: {DEFAULT_MODEL}")
    _add_convert(actions.add_parser("convert", help="write a model as a CPU runs it, to start large models at once"))


def _add_convert(sub: argparse.ArgumentParser) -> None:
    sub.description = (
        "Write a model's weights into the folder DST in the order in which the CPU's kernels read them, with its "
        "tokenizer. Serving DST gives the same text to the bit; it starts without reading, quantising and packing: the "
        "weights are mapped, and several processes share them in memory. Files work on every instruction set."
    )
    sub.add_argument("source", metavar="SRC", help="GGUF file, checkpoint folder, or hub name owner/name[:file.gguf]")
    sub.add_argument("destination", metavar="DST", type=Path, help="folder to write; must not exist")
    sub.add_argument("--dtype", choices=DTYPES, default="auto", help="as for `serve`")
    sub.add_argument("--quantization", choices=QUANTIZATIONS, default="auto", help="as for `serve`")
    sub.add_argument("-t", "--threads", type=int, metavar="N", help="CPU threads; default: the cores it may use")


def run(args: argparse.Namespace) -> int:
    if args.action == "list" and args.supported:
        from orcaserve.cli.supported import as_text

        print(as_text())
    elif args.action == "list":
        for name, path, size in cached_models():
            print(f"{name}\t{size / 1e6:.0f} MB\t{path}")
    elif args.action == "convert":
        _convert(args)
    else:
        print(locate_model(args.name, fetch=args.action == "pull"))
    return 0


def _convert(args: argparse.Namespace) -> None:
    from orcaserve.native.convert import convert
    from orcaserve.worker.resources import available_cores

    source = locate_model(args.source)
    precision = convert(source, args.destination, args.dtype, args.quantization, args.threads or available_cores())
    size = sum(file.stat().st_size for file in args.destination.iterdir())
    print(f"{args.destination}: {size / 1e6:.0f} MB, {precision.text}")
