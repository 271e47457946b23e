"""The K/V region of the CPU: its sizes, and memory that is taken only when it is written."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from orcaserve.model.spec import ModelSpec
from orcaserve.native.kv_region import STORAGES, KVRegion, slot_bytes


def spec(n_layers: int, n_kv_heads: int, head_dim: int) -> ModelSpec:
    return ModelSpec(16, 64, 8, n_layers, n_kv_heads, n_kv_heads, head_dim, 8, "rms", 1e-5, "silu", True, True, None)


DEFAULT = spec(30, 3, 64)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("sizes", [(2, 3, 20), (1, 1, 64)])
def test_slot_bytes_is_what_the_region_takes(storage: str, sizes: tuple[int, int, int]) -> None:
    region = KVRegion(spec(*sizes), n_pages=5, page_size=32, storage=storage)
    arrays = [region.keys, region.values, region.key_scales, region.value_scales]
    assert sum(array.nbytes for array in arrays if array is not None) == 5 * 32 * slot_bytes(spec(*sizes), storage)
    for array in arrays:
        if array is not None:
            assert array.shape[:3] == (sizes[0], 5, sizes[1])
            assert array.ctypes.data % 64 == 0 and array.flags.writeable and array.flags.c_contiguous


def test_the_default_models_slot() -> None:
    assert [slot_bytes(DEFAULT, storage) for storage in STORAGES] == [46_080, 23_040, 12_240]


@pytest.mark.parametrize(("sizes", "page_size"), [((1, 1, 64), 8), ((1, 1, 6), 16)])
def test_what_the_kernels_cannot_read_is_refused(sizes: tuple[int, int, int], page_size: int) -> None:
    with pytest.raises(ValueError, match="multiple of 16"):
        KVRegion(spec(*sizes), 4, page_size, "float32")


def test_memory_is_committed_when_it_is_written() -> None:
    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    before = resident()
    region = KVRegion(DEFAULT, 4096, 16, "float32")  # 3 GB
    assert resident() - before < 16 * 2**20
    region.keys[0, 0] = 1
    assert resident() - before < 32 * 2**20
    assert np.all(region.keys[0, 0] == 1)
