"""Packed files: what is mapped gives what packing gives, to the bit; what is damaged is refused by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from family_cases import make
from quantised_folders import awq, compressed

from orcaserve.checkpoint.converted import WEIGHTS
from orcaserve.core.errors import CheckpointError, ConfigError, UnsupportedModel
from orcaserve.native._kernels import Team
from orcaserve.native.convert import convert
from orcaserve.native.model import NativeModel
from orcaserve.native.packed_model import VERSION, load_packed

FORMS = [("auto", "auto"), ("bfloat16", "none"), ("auto", "int8"), ("auto", "int4")]
QUANTISED: dict[str, Any] = {
    "awq": lambda source, root: awq(source, root, 32),
    "w4a16": lambda source, root: compressed(source, root, 4, 32, symmetric=False),
    "w8a8": lambda source, root: compressed(source, root, 8, "channel", packed=False),
}
BATCH = [(i, [(7 * i + j) % 131 for j in range(1 + 5 * i)]) for i in range(6)]


def mapped(native_model: Any, folder: Path) -> Any:
    """The converted model, as tests run models."""
    model = native_model.__new__(native_model)
    model.spec, model.precision, weights = load_packed(folder / WEIGHTS, 2)
    model.model = NativeModel(model.spec, weights, Team(2))
    return model


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", ["llama", "gpt2", "gguf", "Q4_K", "awq", "w4a16", "w8a8", "experts"])
def test_converted_is_direct_to_the_bit(
    family: str, form: tuple[str, str], native_model: Any, runner: Any, tiny_llama: Any, tiny_gpt2: Any,
    save_gguf: Any, tmp_path: Path,
) -> None:  # fmt: skip
    source = tmp_path / "source"
    if family in QUANTISED:
        tiny_llama().save_pretrained(source)
        source = QUANTISED[family](source, tmp_path).folder
    elif family in ("gguf", "Q4_K"):
        source, wide = tmp_path / "model.gguf", {"hidden_size": 256, "intermediate_size": 256}
        kind, options = ("Q4_1", {}) if family == "gguf" else ("Q4_K", {**wide, "num_attention_heads": 8})
        save_gguf(tiny_llama(tie_word_embeddings=True, **options), source, kind)
    elif family == "experts":
        make("qwen3_moe, dense layers").save_pretrained(source)
    else:
        (tiny_gpt2() if family == "gpt2" else tiny_llama(attention_bias=True)).save_pretrained(source)
    direct = native_model(source, dtype=form[0], quantization=form[1])
    precision = convert(source, tmp_path / "converted", *form, n_threads=2)
    assert precision == direct.precision
    converted = mapped(native_model, tmp_path / "converted")
    assert (converted.spec, converted.precision) == (direct.spec, direct.precision)
    ours, theirs = runner(converted), runner(direct)
    assert torch.equal(ours.step(BATCH), theirs.step(BATCH))
    assert ours.greedy(BATCH[3][1], 20, request=9) == theirs.greedy(BATCH[3][1], 20, request=9)


@pytest.fixture
def converted(tiny_llama: Any, tmp_path: Path) -> Path:
    tiny_llama().save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "converted", "auto", "int8", n_threads=1)
    return tmp_path / "converted" / WEIGHTS


def header_end(raw: bytes) -> int:
    return 8 + int.from_bytes(raw[:8], "little")


def test_every_damaged_tensor_is_named(converted: Path) -> None:
    raw = converted.read_bytes()
    data = header_end(raw)
    header = json.loads(raw[8:data])
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        damaged = bytearray(raw)
        damaged[data + entry["data_offsets"][0] + 5] ^= 1
        converted.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=f"tensor {name} is damaged"):
            load_packed(converted, 2)


def test_a_damaged_description_and_a_short_file(converted: Path) -> None:
    raw = converted.read_bytes()
    for old, new in (
        (b"rms", b"rmz"),
        (b'norm_eps\\": 1', b'norm_eps\\": 2'),
        (b"INT8", b"INT4"),
        (b"n_out", b"n_0ut"),
    ):
        assert old in raw
        converted.write_bytes(raw.replace(old, new, 1))
        with pytest.raises(CheckpointError, match="description of the weights is damaged"):
            load_packed(converted, 2)
    for end in (4, 100, header_end(raw) + 10, len(raw) - 1):
        converted.write_bytes(raw[:end])
        with pytest.raises(CheckpointError):
            load_packed(converted, 2)


def test_another_versions_file_is_refused(converted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orcaserve.native.packed_model.VERSION", VERSION + 1)
    with pytest.raises(UnsupportedModel, match="convert the model again"):
        load_packed(converted, 1)


def test_what_exists_is_not_overwritten_and_a_failure_leaves_nothing(tiny_llama: Any, tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path / "source")
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        convert(tmp_path / "source", tmp_path / "there", "auto", "auto", n_threads=1)
    raw = bytearray((tmp_path / "source" / "model.safetensors").read_bytes())
    raw[-4:] = b"\xff\xff\xff\xff"
    (tmp_path / "source" / "model.safetensors").write_bytes(raw)
    with pytest.raises(CheckpointError, match="finite"):
        convert(tmp_path / "source", tmp_path / "new", "auto", "auto", n_threads=1)
    assert {path.name for path in tmp_path.iterdir()} == {"source", "there"}
