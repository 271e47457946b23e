"""Flags of low-rank adapters."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from orcaserve.config import AdaptersConfig
from orcaserve.core.adapter import AdapterSource
from orcaserve.core.errors import ConfigError, ModelError


def add_adapter_arguments(parser: argparse.ArgumentParser) -> None:
    usual = AdaptersConfig()
    group = parser.add_argument_group(
        "adapters",
        "Low-rank adapters (LoRA) of the model, which requests name in `model`; many run in one batch (docs/lora.md).",
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
    group.add_argument(
        "--enable-runtime-lora-updating",
        action="store_true",
        help="clients may load adapters from folders of this machine, and unload them, while the server runs: "
        "for servers whose clients may do so",
    )


def adapters_config(args: argparse.Namespace, model: str) -> AdaptersConfig:
    """model: the base model's name for clients. Raises ConfigError; ModelError if an adapter cannot be had."""
    modules: list[AdapterSource] = []
    for number, text in enumerate(args.lora_modules, 1):
        name, equals, folder = text.partition("=")
        if not equals or not name or not folder:
            raise ConfigError("--lora-modules", f"{text!r} is not NAME=DIR")
        if any(name == other.name for other in modules):
            raise ConfigError("--lora-modules", f"{name} is given twice")
        if name == model:
            raise ConfigError("--lora-modules", f"{name} is the model's own name")
        from orcaserve.checkpoint.lora import LoraFiles, digest  # late: with it comes numpy

        path = Path(os.path.abspath(folder))
        try:
            LoraFiles(path).close()
            modules.append(AdapterSource(number, name, path, digest(path)))
        except ModelError as error:
            raise type(error)(f"adapter {name}: {error}") from error
    updating = args.enable_runtime_lora_updating
    return AdaptersConfig(tuple(modules), args.max_loras, args.max_lora_rank, updating)
