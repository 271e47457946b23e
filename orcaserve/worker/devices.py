"""Which device of PyTorch's a worker takes, and what memory that has."""

from __future__ import annotations

import torch
import torch.distributed as dist

from orcaserve.core import ConfigError
from orcaserve.worker.among import ALONE, Among


def torch_device(setting: str, among: Among = ALONE) -> torch.device:
    """setting: cpu, reference (the CPU too), cuda:N, or cuda: then the workers of a machine take one GPU after the
    other, and begin anew when there are no more. Raises ConfigError if there is no such device.
    """
    if setting in ("cpu", "reference"):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("--device", f"PyTorch finds no {setting} here")
    n_gpus = torch.cuda.device_count()
    if setting == "cuda":
        return torch.device("cuda", among.index % n_gpus)
    number = int(setting.removeprefix("cuda:"))
    if number >= n_gpus:
        raise ConfigError("--device", f"PyTorch finds no {setting} here: there are {n_gpus}, numbered from 0")
    return torch.device("cuda", number)


def check_nccl(device: torch.device) -> None:
    """Raises ConfigError if workers on such devices could exchange nothing."""
    if device.type == "cuda" and not dist.is_nccl_available():
        raise ConfigError("--device", "workers on GPUs need NCCL, which this build of PyTorch lacks")


def free_on_gpu(setting: str, among: Among) -> int:
    """Bytes of this worker's GPU that are free, or its share of them where several workers have the same GPU."""
    devices = [torch_device(setting, Among(index, among.n_workers)) for index in range(among.n_workers)]
    own = devices[among.index]
    return int(torch.cuda.mem_get_info(own)[0]) // devices.count(own)
