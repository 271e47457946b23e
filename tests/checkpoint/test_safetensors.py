"""SafetensorsFile: reads what the safetensors library writes, and refuses whatever does not add up."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from orcaserve.checkpoint.safetensors import ALIGNMENT, SafetensorsFile, write_bytes
from orcaserve.core.errors import CheckpointError, ModelError, ModelNotFound, UnsupportedModel

Write = Callable[..., Path]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_reads_what_the_library_writes(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {"a": torch.randn(5, 7).to(dtype), "b": torch.randn(3).to(dtype), "scalar": torch.tensor(2.0).to(dtype)}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert file.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert file.tensors[name].shape == tuple(tensor.shape)
        assert np.array_equal(file.read(name), tensor.float().numpy())
    out = np.empty((5, 7), np.float32)
    assert file.read("a", out) is out
    assert file.stored("a").shape == (5, 7 * dtype.itemsize)
    file.close()


def test_integers_are_listed_and_not_read(tmp_path: Path) -> None:
    save_file({"ids": torch.arange(3)}, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert file.tensors["ids"].kind == "I64"
    with pytest.raises(UnsupportedModel, match="I64"):
        file.read("ids")


def entry(begin: int, end: int, shape: Any = (1,), dtype: Any = "F32", **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end], **more}


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (b"", b"12345678"),
        (b"[]", b""),
        (b"{", b""),
        (b"\xff\xfe{}", b""),
        (b"[" * 100_000, b""),
        (b'{"a": 1}', b""),
        (b'{"a": {"dtype":"F32","shape":[1],"data_offsets":[0,4]}, "a": {}}', b"1234"),
        ({"a": entry(0, 4)}, b"123"),
        ({"a": entry(0, 4)}, b"12345"),
        ({"a": entry(0, 4), "b": entry(8, 12)}, b"123412341234"),
        ({"a": entry(0, 8, (2,)), "b": entry(4, 8)}, b"12341234"),
        ({"a": entry(0, 4), "b": entry(0, 4)}, b"12341234"),
        ({"a": entry(4, 0)}, b"1234"),
        ({"a": entry(-4, 0)}, b"1234"),
        ({"a": entry(0, 4, (2,))}, b"1234"),
        ({"a": entry(0, 4, (-1,))}, b"1234"),
        ({"a": entry(0, 4, (True,))}, b"1234"),
        ({"a": entry(0, 4, (1.0,))}, b"1234"),
        ({"a": entry(0, 4, (2**62, 2**62))}, b"1234"),
        ({"a": entry(0, 4, (1,) * 9)}, b"1234"),
        ({"a": entry(0, 4, extra=1)}, b"1234"),
        ({"a": {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}}, b"1234"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}, b"1234"),
    ],
)
def test_headers_that_do_not_add_up(header: Any, data: bytes, write_safetensors: Write) -> None:
    with pytest.raises(CheckpointError):
        SafetensorsFile(write_safetensors(header, data))


def test_other_refusals(write_safetensors: Write, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel):
        SafetensorsFile(write_safetensors({"a": entry(0, 4, dtype="Q3")}, b"1234"))
    with pytest.raises(UnsupportedModel):
        SafetensorsFile(write_safetensors({"a": entry(0, 4, dtype=3)}, b"1234"))
    with pytest.raises(ModelNotFound):
        SafetensorsFile(tmp_path / "none.safetensors")
    for length in (2**63, 101 << 20, 100):
        (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", length) + b"{}")
        with pytest.raises(CheckpointError):
            SafetensorsFile(tmp_path / "x.safetensors")


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 180), raw=st.binary(min_size=1, max_size=8), cut=st.integers(0, 40))
def test_mutations_never_do_more_than_raise_a_model_error(at: int, raw: bytes, cut: int, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    if not path.exists():
        save_file({"a": torch.ones(4, 4), "b": torch.ones(3)}, path)
    whole = path.read_bytes()
    mutated = bytearray(whole[: len(whole) - cut])
    mutated[at : at + len(raw)] = raw
    (tmp_path / "y.safetensors").write_bytes(mutated)
    try:
        file = SafetensorsFile(tmp_path / "y.safetensors")
        for name in file.tensors:
            file.read(name)
    except ModelError:
        pass


def test_what_is_written_here_is_read_here_and_by_the_library(tmp_path: Path) -> None:
    arrays = {f"a{n}": np.arange(n, dtype=np.uint8) for n in (1, 64, 65, 200)}
    path = tmp_path / "x.safetensors"
    write_bytes(path, arrays, {"note": "äöü", "other": "1"})
    file, theirs = SafetensorsFile(path), load_file(path)
    assert file.metadata == {"note": "äöü", "other": "1"}
    for name, array in arrays.items():
        mapped = file.mapped(name)
        assert mapped.size == -(-array.size // ALIGNMENT) * ALIGNMENT
        assert np.array_equal(mapped[: array.size], array) and not mapped[array.size :].any()
        assert file.tensors[name].offset % ALIGNMENT == 0
        assert not mapped.flags.writeable
        assert np.array_equal(theirs[name].numpy(), mapped)
