"""The same files have the same fingerprint; another architecture, or weights that were trained further, another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from orcaserve.checkpoint.converted import WEIGHTS
from orcaserve.checkpoint.fingerprint import fingerprint
from orcaserve.core.errors import CheckpointError
from orcaserve.native.convert import convert


def test_copies_agree(tiny_model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "another name"
    shutil.copytree(tiny_model, copy)
    assert fingerprint(copy) == fingerprint(tiny_model)


def test_others_do_not(tiny_model: Path, odd_model: Path, tmp_path: Path) -> None:
    model, digest = fingerprint(tiny_model)
    assert model == "llama, layers 2, hidden size 32, heads 4, key/value heads 2, vocabulary 256"
    other, _ = fingerprint(odd_model)
    assert other.startswith("llama, layers 5, hidden size 64")
    copy = tmp_path / "copy"
    shutil.copytree(tiny_model, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "rope_theta": 500000.0}))
    same, changed = fingerprint(copy)
    assert same == model and changed != digest


def test_of_a_converted_model(tiny_model: Path, tmp_path: Path) -> None:
    """Another matrix is noticed, too."""
    from safetensors.numpy import load_file, save_file

    source = tmp_path / "source"
    shutil.copytree(tiny_model, source)
    convert(source, tmp_path / "one", "auto", "int8", n_threads=1)
    convert(source, tmp_path / "same", "auto", "int8", n_threads=2)
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][5, 5] += 1
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    convert(source, tmp_path / "other", "auto", "int8", n_threads=1)
    model, digest = fingerprint(tmp_path / "one")
    shown = "a model converted to int8, layers 2, hidden size 32, heads 4, key/value heads 2, vocabulary 256"
    assert model == shown and model != fingerprint(tiny_model)[0]
    assert fingerprint(tmp_path / "same") == (model, digest)
    same, changed = fingerprint(tmp_path / "other")
    assert same == model and changed != digest
    file = tmp_path / "one" / WEIGHTS
    file.write_bytes(file.read_bytes().replace(b"orcaserve", b"orcaserv3", 1))
    with pytest.raises(CheckpointError, match="description"):
        fingerprint(tmp_path / "one")


def test_of_a_gguf_file(default_model: Path) -> None:
    model, digest = fingerprint(default_model)
    assert model == "llama, layers 30, hidden size 576, heads 9, key/value heads 3, vocabulary 49152"
    assert len(digest) == 64
