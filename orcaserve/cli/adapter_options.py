"""Flags of low-rank adapters."""

from __future__ import annotations

import argparse

from orcaserve.config import AdaptersConfig
from orcaserve.core.adapter import AdapterSource
from orcaserve.core.errors import ConfigError

UPDATING = "enable_runtime_lora_updating"


def add_adapter_arguments(
    parser: argparse.ArgumentParser, who: str = "which requests name in `model`", *, updating: bool = False
) -> None:
    """who: who has which of them. updating: clients may load and unload some, if a flag says so."""
    usual = AdaptersConfig()
    group = parser.add_argument_group(
        "adapters", f"Low-rank adapters (LoRA) of the model, {who}; many run in one batch (docs/lora.md)."
    )
    group.add_argument(
        "--lora-modules",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=DIR",
        help="adapters to load at the start: a name, and a folder as PEFT saves it",
    )
    group.add_argument(
        "--max-loras",
        type=int,
        default=usual.max_loras,
        metavar="N",
        help="most adapters that are loaded at a time (default: %(default)s)",
    )
    group.add_argument(
        "--max-lora-rank",
        type=int,
        default=usual.max_rank,
        metavar="R",
        help="largest rank that an adapter may have (default: %(default)s)",
    )
    if not updating:
        return
    group.add_argument(
        "--enable-runtime-lora-updating",
        action="store_true",
        help="clients may load adapters from folders of this machine, and unload them, while the server runs: "
        "for servers whose clients may do so",
    )


def adapters_config(args: argparse.Namespace, model: str) -> AdaptersConfig:
    """model: its name for clients. Raises ConfigError; ModelError if an adapter cannot be had."""
    modules: list[tuple[str, str]] = []
    for text in args.lora_modules:
        name, equals, folder = text.partition("=")
        if not equals or not name or not folder:
            raise ConfigError("--lora-modules", f"{text!r} is not NAME=DIR")
        modules.append((name, folder))
    sources: tuple[AdapterSource, ...] = ()
    if modules:
        from orcaserve.checkpoint.lora import named_adapters  # late: with it comes numpy

        sources = named_adapters(modules, model)
    return AdaptersConfig(sources, args.max_loras, args.max_lora_rank, getattr(args, UPDATING, False))
