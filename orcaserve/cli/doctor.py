"""`orcaserve doctor`: the facts a bug report needs, and whether anything is plainly wrong."""

from __future__ import annotations

import argparse
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from orcaserve.checkpoint.locate import DEFAULT_MODEL, cache_dir, cached_models
from orcaserve.config import DTYPES, KV_DTYPES, QUANTIZATIONS
from orcaserve.core.errors import ConfigError
from orcaserve.version import __version__
from orcaserve.worker.resources import available_cores, available_memory

WEIGHTS = (*DTYPES[1:], *QUANTIZATIONS[2:])
PACKAGES = ("torch", "numpy", "tokenizers", "gguf", "grpcio", "protobuf", "uvicorn", "httptools")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print facts about this machine and installation. Exit code 1 if something is plainly wrong."


def run(args: argparse.Namespace) -> int:
    troubles: list[str] = []
    rows = {"orcaserve": __version__, "python": platform.python_version(), "system": platform.platform()}
    rows["cpu"] = f"{_cpu_name()}, {available_cores()} of {os.cpu_count()} cores usable"
    rows["memory"] = f"{available_memory() / 2**30:.1f} GiB available"
    for package in PACKAGES:
        try:
            rows[package] = version(package)
        except PackageNotFoundError:
            rows[package] = "missing"
            troubles.append(f"the package {package} is not installed")
    rows["threads"] = f"{available_cores()}, unless -t says otherwise"
    try:
        from orcaserve import native

        rows["instruction set"] = f"{native.isa()} (this CPU has: {', '.join(native.available_isas())})"
        rows["weights"] = f"{', '.join(WEIGHTS)}; K/V: {', '.join(KV_DTYPES[1:])}"
    except ConfigError as error:
        rows["instruction set"] = "not the one that was asked for"
        troubles.append(str(error))
    except ImportError as error:
        rows["instruction set"] = "no kernels"
        troubles.append(f"the native kernels cannot be loaded ({error}); models run in PyTorch, much slower")
    rows["devices"] = ", ".join(["cpu", *_cuda_devices()])
    models = {name: size for name, _, size in cached_models()}
    rows["cache"] = f"{cache_dir()}: " + (", ".join(models) or "empty")
    if DEFAULT_MODEL not in models:
        rows["default model"] = "not fetched yet; `orcaserve models pull` or `orcaserve serve` fetches it"
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")
    for trouble in troubles:
        print(f"TROUBLE  {trouble}")
    return 1 if troubles else 0


def _cuda_devices() -> list[str]:
    """Others that PyTorch could use."""
    try:
        import torch

        return [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    except (ImportError, RuntimeError):
        return []


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
