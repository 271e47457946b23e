"""The same files have the same fingerprint; another architecture, or weights that were trained further, another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from orcaserve.checkpoint.fingerprint import fingerprint


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


def test_of_a_gguf_file(default_model: Path) -> None:
    model, digest = fingerprint(default_model)
    assert model == "llama, layers 30, hidden size 576, heads 9, key/value heads 3, vocabulary 49152"
    assert len(digest) == 64
