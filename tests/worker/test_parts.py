"""Which device a worker's part gets, its share of the memory there, and what is refused in one line."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orcaserve.config import EngineConfig, KVConfig, ModelConfig
from orcaserve.core import ConfigError
from orcaserve.data_plane.protocol import Place
from orcaserve.model.loader import ModelFiles
from orcaserve.worker.among import ALONE, Among
from orcaserve.worker.part_backend import PartBackend
from orcaserve.worker.parts import RunsPart, free_memory, load_part
from orcaserve.worker.plan import read_plan
from orcaserve.worker.resources import available_memory

pytest.importorskip("torch")
import torch

from orcaserve.config import ParallelConfig
from orcaserve.native.convert import convert
from orcaserve.worker.devices import check_nccl, torch_device
from orcaserve.worker.reference_part_backend import ReferencePartBackend


def config(path: Path, kv: str = "auto", **model: Any) -> EngineConfig:
    return EngineConfig(ModelConfig(path, "tiny", **model), KVConfig(n_slots=64, dtype=kv))


def load(config: EngineConfig, shard: int = 0, n_shards: int = 1) -> RunsPart:
    """Of the first stage of two."""
    parallel = ParallelConfig(2, n_shards, layer_split=(1, n_layers(config.model.path) - 1))
    config = replace(config, parallel=parallel)
    return load_part(config, read_plan(config), Place(0, shard, 2, n_shards), 1, ALONE)


def n_layers(path: Path) -> int:
    with ModelFiles(path) as files:
        return files.spec.n_layers


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch says where there are two GPUs with 100 and 60 bytes of free memory."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: ((100, 60)[device.index], 200))


def test_the_device_chooses(tiny_model: Path) -> None:
    assert isinstance(load(config(tiny_model)), PartBackend)
    assert isinstance(load(config(tiny_model, device="reference")), ReferencePartBackend)


@pytest.mark.parametrize(("kv", "size"), [("auto", 4), ("bfloat16", 2), ("float32", 4)])
def test_bytes_of_a_slot_are_of_the_parts_own_layers_and_heads(kv: str, size: int, odd_model: Path) -> None:
    assert load(config(odd_model, kv, device="reference"), 1, 2).slot_bytes == 2 * 1 * 2 * 8 * size


@pytest.mark.usefixtures("two_gpus")
def test_workers_take_one_gpu_after_the_other() -> None:
    assert [torch_device("cuda", Among(i, 5)).index for i in range(5)] == [0, 1, 0, 1, 0]
    assert [torch_device("cuda:1", Among(i, 2)).index for i in range(2)] == [1, 1]
    assert torch_device("cuda") == torch.device("cuda", 0)
    with pytest.raises(ConfigError, match=r"^--device: PyTorch finds no cuda:2 here: there are 2, numbered from 0$"):
        torch_device("cuda:2")


@pytest.mark.usefixtures("two_gpus")
def test_workers_that_share_a_gpu_share_its_memory(tiny_model: Path) -> None:
    each = [free_memory(config(tiny_model, device="cuda"), Among(i, 3)) for i in range(3)]
    assert each == [50, 60, 50]
    assert free_memory(config(tiny_model, device="cuda:0"), Among(1, 2)) == 50


def test_on_the_cpu_the_machine_has_the_memory(tiny_model: Path) -> None:
    for device in ("cpu", "reference"):
        assert 0.5 < free_memory(config(tiny_model, device=device), Among(1, 2)) / available_memory() < 2


def test_no_gpu(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"^--device: PyTorch finds no cuda here$"):
        load(config(tiny_model, device="cuda"))


def test_a_build_of_torch_without_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: False)
    check_nccl(torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"^--device: workers on GPUs need NCCL, which this build of PyTorch lacks$"):
        check_nccl(torch.device("cuda", 0))


def test_memory_of_the_device_runs_out(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate ...")

    backend = load(config(tiny_model, device="reference"))
    monkeypatch.setattr("orcaserve.worker.reference_part_backend.KVRegion", fail)
    with pytest.raises(ConfigError, match=r"^--n-slots: 1600 slots do not fit the memory of cpu$"):
        backend.allocate(100)


def test_the_reference_has_no_integers(tiny_model: Path) -> None:
    for setting, says in (({"quantization": "int4"}, "--quantization"), ({"kv": "int8"}, "--kv-cache-dtype")):
        with pytest.raises(ConfigError, match=says):
            load(config(tiny_model, device="reference", **setting))


def test_where_the_kernels_are_not_built(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "orcaserve.worker.part_backend", None)  # makes its import raise ImportError
    with pytest.raises(ConfigError, match=r"^--device: the CPU's kernels are not here .*: take --device reference$"):
        load(config(tiny_model))


def test_converted_models_are_the_cpus(tiny_model: Path, tmp_path: Path) -> None:
    convert(tiny_model, tmp_path / "converted", "auto", "auto", n_threads=1)
    model = ModelConfig(tmp_path / "converted", "tiny", device="reference")
    with pytest.raises(ConfigError, match=r"^--device: a converted model is packed for the CPU's kernels"):
        read_plan(EngineConfig(model, parallel=ParallelConfig(2)))
