"""GGUFFile: reads what the gguf library writes, fast, and refuses whatever does not add up."""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orcaserve.checkpoint import gguf
from orcaserve.checkpoint.checkpoint import open_checkpoint
from orcaserve.checkpoint.gguf import GGUFFile
from orcaserve.core.errors import CheckpointError, ModelError, ModelNotFound, UnsupportedModel

Write = Callable[..., Path]


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def tensor(name: str, sizes: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def test_reads_what_the_library_writes(small_gguf: Path) -> None:
    file = GGUFFile(small_gguf)
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["llama.attention.head_count"] == 4
    assert file.metadata["llama.rope.freq_base"] == 10_000.0
    assert file.metadata["llama.flag"] is True
    assert file.metadata["tokenizer.ggml.tokens"] == [f"<{i}>" for i in range(16)]
    assert file.metadata["tokenizer.ggml.token_type"].tolist() == [1] * 16
    assert file.tensors["blk.0.attn_k.weight"].shape == (4, 8)
    expected = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    assert np.array_equal(file.read("token_embd.weight"), expected)
    assert np.array_equal(file.stored("token_embd.weight").view(np.float32), expected)
    file.close()


def test_every_type_of_metadata(write_gguf: Write) -> None:
    formats = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
    pairs = [pair(f"n{kind}", kind, struct.pack("<" + form, 100)) for kind, form in formats.items()]
    numbers = struct.pack("<IQ3h", 3, 3, -1, 0, 7)
    pairs += [pair("text", 8, string("größe")), pair("array", 9, numbers), pair("no", 7, b"\0")]
    pairs += [pair("bools", 9, struct.pack("<IQ2B", 7, 2, 1, 0)), pair("none", 9, struct.pack("<IQ", 8, 0))]
    pairs += [pair("nested", 9, struct.pack("<IQ", 9, 2) + 2 * numbers)]
    metadata = GGUFFile(write_gguf(tuple(pairs), version=2)).metadata
    assert all(metadata[f"n{kind}"] == 100 for kind in formats)
    assert type(metadata["n4"]) is int
    assert type(metadata["n6"]) is float
    assert metadata["text"] == "größe"
    assert metadata["array"].tolist() == [-1, 0, 7]
    assert metadata["no"] is False
    assert metadata["bools"].tolist() == [True, False]
    assert metadata["none"] == []
    assert [part.tolist() for part in metadata["nested"]] == [[-1, 0, 7], [-1, 0, 7]]


def test_the_table_of_kinds_is_the_librarys() -> None:
    for number, (name, block, n_bytes) in gguf.KINDS.items():
        kind = GGMLQuantizationType(number)
        assert (kind.name, GGML_QUANT_SIZES[kind]) == (name, (block, n_bytes))


def test_a_vocabulary_is_read_quickly(default_model: Path) -> None:
    times = []
    for _ in range(3):
        start = time.thread_time()
        file = GGUFFile(default_model)
        times.append(time.thread_time() - start)
        file.close()
    assert len(file.metadata["tokenizer.ggml.tokens"]) == 49_152
    assert min(times) < 0.15


def test_reading_a_header_imports_neither_torch_nor_gguf() -> None:
    import subprocess

    code = "import sys, orcaserve.checkpoint.gguf, orcaserve.checkpoint; print({'torch', 'gguf'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


F32_4 = struct.pack("<4f", 1, 2, 3, 4)


def damaged(write: Write, **parts: Any) -> None:
    with pytest.raises(CheckpointError):
        GGUFFile(write(**parts))


def test_headers_that_do_not_add_up(write_gguf: Write) -> None:
    one = pair("a", 4, struct.pack("<I", 1))
    damaged(write_gguf, pairs=(one, one))
    damaged(write_gguf, pairs=(one,), n_pairs=2)
    damaged(write_gguf, n_pairs=2**63)
    damaged(write_gguf, n_tensors=2**63)
    damaged(write_gguf, pairs=(pair("", 4, b"1234"),))
    damaged(write_gguf, pairs=(string("k" * 2000) + b"\4\0\0\0abcd",))
    damaged(write_gguf, pairs=(pair("a", 99, b"1234"),))
    damaged(write_gguf, pairs=(pair("a", 7, b"\2"),))
    damaged(write_gguf, pairs=(pair("a", 8, struct.pack("<Q", 2**62)),))
    damaged(write_gguf, pairs=(pair("a", 8, string(b"\xff\xfe")),))
    damaged(write_gguf, pairs=(pair("a", 9, struct.pack("<IQ", 4, 2**61)),))
    damaged(write_gguf, pairs=(pair("a", 9, struct.pack("<IQ", 8, 2**61)),))
    damaged(write_gguf, pairs=(pair("a", 9, struct.pack("<IQQ", 8, 1, 2**40)),))
    damaged(write_gguf, pairs=(pair("a", 9, struct.pack("<IQ", 8, 1) + string(b"\xc3")),))
    damaged(write_gguf, pairs=(pair("a", 9, struct.pack("<IQ", 9, 1) * 4 + struct.pack("<IQ", 4, 0)),))
    damaged(write_gguf, pairs=(pair("general.alignment", 4, struct.pack("<I", 0)),))
    damaged(write_gguf, pairs=(pair("general.alignment", 4, struct.pack("<I", 24)),))
    damaged(write_gguf, pairs=(pair("general.alignment", 8, string("32")),))


def test_tensors_that_do_not_fit(write_gguf: Write) -> None:
    assert GGUFFile(write_gguf(tensors=(tensor("t", (4,)),), data=F32_4)).read("t").tolist() == [1, 2, 3, 4]
    damaged(write_gguf, tensors=(tensor("t", (4,)),), data=F32_4[:-1])
    damaged(write_gguf, tensors=(tensor("t", (4,), offset=32),), data=F32_4)
    damaged(write_gguf, tensors=(tensor("t", (1,), offset=4),), data=F32_4)
    damaged(write_gguf, tensors=(tensor("t", (4,), offset=2**64 - 32),), data=F32_4)
    damaged(write_gguf, tensors=(tensor("t", (2**63, 2)),), data=F32_4)
    damaged(write_gguf, tensors=(tensor("t", (2**32, 2**32)),), data=F32_4)
    damaged(write_gguf, tensors=(tensor("t", (4, 0)),), data=F32_4)
    damaged(write_gguf, tensors=(tensor("t", ()),), data=F32_4)
    damaged(write_gguf, tensors=(tensor("t", (1, 1, 1, 1, 4)),), data=F32_4)
    damaged(write_gguf, tensors=(tensor("t", (33,), kind=8),), data=bytes(80))
    damaged(write_gguf, tensors=(tensor("t", (4,)), tensor("t", (4,), offset=32)), data=F32_4 * 4)
    damaged(write_gguf, tensors=(tensor("t", (16,)), tensor("u", (4,), offset=32)), data=F32_4 * 4)


def test_versions_and_kinds_from_another_world(write_gguf: Write, tmp_path: Path) -> None:
    for version in (1, 4, 3 << 24):
        with pytest.raises(UnsupportedModel, match="version"):
            GGUFFile(write_gguf(version=version))
    with pytest.raises(UnsupportedModel, match="kind 77"):
        GGUFFile(write_gguf(tensors=(tensor("t", (4,), kind=77),), data=F32_4))
    for raw in (b"", b"GGUF", b"GGML" + bytes(60)):
        (tmp_path / "x.gguf").write_bytes(raw)
        with pytest.raises(CheckpointError):
            GGUFFile(tmp_path / "x.gguf")
    with pytest.raises(ModelNotFound):
        GGUFFile(tmp_path / "none.gguf")


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutations_never_do_more_than_raise_a_model_error(
    data: st.DataObject, small_gguf: Path, tmp_path: Path
) -> None:
    """Bytes changed, cut out, doubled, the end cut off: read whole or refused, in little memory."""
    raw = bytearray(small_gguf.read_bytes())
    header = 1800  # where the interesting bytes are
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(4, max(4, min(header, len(raw) - 9))))
        how = data.draw(st.sampled_from(["byte", "word", "cut", "double", "end"]))
        if how == "byte":
            raw[at] = data.draw(st.integers(0, 255))
        elif how == "word":
            raw[at : at + 8] = struct.pack("<Q", data.draw(st.sampled_from([0, 1, 2**31, 2**32, 2**63, 2**64 - 1])))
        elif how == "cut":
            del raw[at : at + data.draw(st.integers(1, 9))]
        elif how == "double":
            raw[at:at] = raw[at : at + data.draw(st.integers(1, 40))]
        else:
            del raw[data.draw(st.integers(min(10, len(raw)), len(raw))) :]
    path = tmp_path / "mutated.gguf"
    path.write_bytes(raw)
    try:
        checkpoint = open_checkpoint(path)
        for name in checkpoint.tensors:
            checkpoint.read(name)
    except ModelError:
        pass


def test_a_copy_without_tensors_has_the_same_metadata(small_gguf: Path, tmp_path: Path) -> None:
    file = GGUFFile(small_gguf)
    (tmp_path / "metadata.gguf").write_bytes(file.without_tensors())
    copy = GGUFFile(tmp_path / "metadata.gguf")
    assert copy.tensors == {} and file.tensors
    assert (copy.version, list(copy.metadata)) == (file.version, list(file.metadata))
    for key, value in file.metadata.items():
        assert np.array_equal(copy.metadata[key], value), key
