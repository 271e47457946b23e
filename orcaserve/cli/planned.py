"""The flags that describe an engine without loading it: a model, and hardware by its data sheet or by a profile."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orcaserve.checkpoint.locate import model_name
from orcaserve.cli.profile_file import default_profile
from orcaserve.config import DTYPES, KV_DTYPES, QUANTIZATIONS, EngineConfig, KVConfig, ModelConfig
from orcaserve.core.errors import ConfigError
from orcaserve.simulation.hardware import A100_40GB, HARDWARE, Hardware, find_hardware
from orcaserve.simulation.models import PAPER_MODELS, Cut, ModelSizes

if TYPE_CHECKING:
    from orcaserve.evaluation.planning.engine import PlannedEngine

PROFILE = "profile"
_GROUP = f"""MODEL is one of the paper's ({", ".join(PAPER_MODELS)}), a GGUF file, a checkpoint folder, a hub name
that is on this machine, or `default`. Its headers are read, nothing is loaded."""


def add_planned_arguments(parser: argparse.ArgumentParser, *, default: str | None = None) -> None:
    """default: the model if none is given; None: one must be given."""
    group = parser.add_argument_group("model and hardware", _GROUP)
    text = "" if default is None else " (default: %(default)s)"
    group.add_argument("model", nargs="?" if default else None, default=default, metavar="MODEL",
                       help="what to run" + text)  # fmt: skip
    group.add_argument("--hardware", metavar="NAME",
                       help=f"{', '.join(HARDWARE)}; `{PROFILE}`: this machine, as `orcaserve profile` measured it; or "
                       f"a profile's file (default: a100-40gb for the paper's, else `{PROFILE}`)")  # fmt: skip
    group.add_argument("-tp", "--tensor-parallel-size", type=_positive, metavar="N",
                       help="devices that share each layer (default: the paper's, or the fewest that do)")  # fmt: skip
    group.add_argument("-pp", "--pipeline-parallel-size", type=_positive, metavar="N",
                       help="stages, with a batch in flight for each (default: likewise)")  # fmt: skip
    group.add_argument("--weight-bits", type=int, choices=(4, 8, 16), default=16,
                       help="on accelerators: bits of a weight (default: %(default)s)")  # fmt: skip
    group.add_argument("--max-model-len", type=_positive, metavar="N", help="most tokens of one request")
    group.add_argument("--any-machine", action="store_true",
                       help="take a profile although it was measured on another machine")  # fmt: skip
    for flag, choices in (("dtype", DTYPES), ("quantization", QUANTIZATIONS), ("kv-cache-dtype", KV_DTYPES)):
        group.add_argument(f"--{flag}", choices=choices, default="auto",
                           help="with a profile: as for `serve` (default: auto)")  # fmt: skip


def planned_engine(args: argparse.Namespace) -> PlannedEngine:
    """Raises ConfigError or ModelError naming what is wrong."""
    from orcaserve.evaluation.planning import engine as planning

    cut = _cut(args)
    on = _on_accelerators(args)
    if on is not None:
        return planning.accelerator_engine(on.sizes, on.hardware, cut or on.cut)
    profile = _profile(args)
    if cut is not None and cut.devices > 1:
        raise ConfigError("-tp, -pp", "a profile is of an engine in one process")
    path, name = planning.named_model(args.model)
    model = ModelConfig(path, name, args.dtype, args.quantization, max_model_len=args.max_model_len)
    return planning.profiled_engine(profile, EngineConfig(model, KVConfig(dtype=args.kv_cache_dtype)), args.any_machine)


def planned_divisions(args: argparse.Namespace, n_devices: int) -> list[PlannedEngine]:
    """One engine for each way to divide the devices into replicas whose model fits; all of them, if none does.

    Raises ConfigError if the flags say how to cut already, or for a profile.
    """
    from orcaserve.evaluation.planning import engine as planning

    on = _on_accelerators(args)
    if on is None or _cut(args) is not None:
        raise ConfigError("--devices", "is for accelerators, and in place of -tp and -pp")
    cuts = [
        cut for cut in planning.cuts(on.hardware) if n_devices % cut.devices == 0 and cut.stages <= on.sizes.n_layers
    ]
    engines = [planning.accelerator_engine(on.sizes, on.hardware, cut) for cut in cuts]
    return [engine for engine in engines if engine.n_slots >= engine.page_size] or engines


@dataclass(frozen=True, slots=True)
class _OnAccelerators:
    """cut: unless flags say otherwise."""

    sizes: ModelSizes
    hardware: Hardware
    cut: Cut


def _on_accelerators(args: argparse.Namespace) -> _OnAccelerators | None:
    """None: a profile is meant."""
    from orcaserve.evaluation.planning import engine as planning

    accelerator = args.hardware is not None and args.hardware.lower() in HARDWARE
    if args.model.lower() in PAPER_MODELS:
        if args.hardware is not None and not accelerator:
            raise ConfigError("--hardware", f"{args.hardware!r}: the paper's models run on {', '.join(HARDWARE)}")
        sizes, cut = PAPER_MODELS[args.model.lower()]
        return _OnAccelerators(sizes, find_hardware(args.hardware or A100_40GB.name), cut)
    if not accelerator:
        return None
    path, name = planning.named_model(args.model)
    hardware = find_hardware(args.hardware)
    sizes = planning.file_sizes(path, name, args.weight_bits)
    return _OnAccelerators(sizes, hardware, planning.smallest_cut(sizes, hardware))


def _cut(args: argparse.Namespace) -> Cut | None:
    shards, stages = args.tensor_parallel_size, args.pipeline_parallel_size
    return None if shards is None and stages is None else Cut(stages or 1, shards or 1)


def _profile(args: argparse.Namespace) -> Path:
    """The file; raises ConfigError if there is none."""
    if args.hardware is None or args.hardware == PROFILE:
        path = default_profile(model_name(args.model))
        if not path.exists():
            raise ConfigError("--hardware", f"there is no profile of {model_name(args.model)} on this machine: "
                              "`orcaserve profile` measures one in a few minutes")  # fmt: skip
        return path
    path = Path(args.hardware)
    if not path.exists():
        known = ", ".join(HARDWARE)
        raise ConfigError("--hardware", f"{args.hardware!r} is none of {known}, {PROFILE}, and no file of that name")
    return path


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 10**7):
        raise argparse.ArgumentTypeError("takes an integer of 1 or more")
    return int(text)
